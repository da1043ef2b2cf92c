"""The parts that plugins add to the bundled server: flags, more listeners, and the folder in which it runs."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from django.utils.module_loading import import_string

from dashboard.plugins.table import PLUGINS


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of the server that a plugin adds. setting: the name of its port's setting."""

    title: str
    setting: str
    host: str
    port: int
    scheme: str = ""  # the scheme of its address, "" for gRPC


class ServerAddition(ABC):
    @abstractmethod
    def flags(self) -> Mapping[str, object]:
        """Return flags of the server, with their values."""

    @abstractmethod
    def listeners(self) -> list[Listener]:
        """Return the listeners of the server, except Unix sockets.

        Raises Invalid if the settings of a listener cannot be used.
        """

    @abstractmethod
    def working_folder(self) -> Path | None:
        """Create and return the folder in which the server runs, or return None for the project's folder."""


@functools.cache
def additions() -> tuple[ServerAddition, ...]:
    return tuple(import_string(name) for plugin in PLUGINS for name in plugin.server_additions)


def listeners() -> list[Listener]:
    return [listener for addition in additions() for listener in addition.listeners()]


def ports_by_host(listeners: Iterable[Listener]) -> dict[str, dict[str, int]]:
    """Return the ports of each host by setting, as `check_ports` takes them, without ports that the system chooses."""
    found: dict[str, dict[str, int]] = {}
    for one in listeners:
        ports = found.setdefault(one.host, {})
        if one.port and not (one.scheme and one.port in ports.values()):  # APIs over HTTP may share a listener
            ports[one.setting] = one.port
    return found
