"""The declaration that each plugin makes."""

from dataclasses import dataclass
from typing import NamedTuple


class ModelSource(NamedTuple):
    """A page to import models from another product. People who may upload code see it. address: its name for `reverse`."""

    address: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The parts that a package adds. The tuples name objects as "package.module.NAME", which are imported on their first use.

    archive_readers: objects of dashboard.catalog.archives.ArchiveReader. server_additions: objects of
    dashboard.servers.additions.ServerAddition. client_protocols: objects of
    dashboard.playground.client_protocols.ClientProtocol.
    """

    archive_readers: tuple[str, ...] = ()
    server_additions: tuple[str, ...] = ()
    client_protocols: tuple[str, ...] = ()
    model_sources: tuple[ModelSource, ...] = ()
