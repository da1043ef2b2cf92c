"""What a plugin declares."""

from dataclasses import dataclass
from typing import NamedTuple


class ModelSource(NamedTuple):
    """A page that brings models from elsewhere, for people who may upload code. address: its name for `reverse`."""

    address: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a package adds. Tuples of texts name objects, "package.module.NAME", that are imported when they are first needed.

    archive_readers: each a dashboard.catalog.archives.ArchiveReader. server_additions: each a
    dashboard.servers.additions.ServerAddition. client_protocols: each a dashboard.playground.client_protocols.ClientProtocol.
    """

    archive_readers: tuple[str, ...] = ()
    server_additions: tuple[str, ...] = ()
    client_protocols: tuple[str, ...] = ()
    model_sources: tuple[ModelSource, ...] = ()
