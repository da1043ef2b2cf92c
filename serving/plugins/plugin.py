"""The declaration of a plugin, and the import of the places that it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a package adds, as places, "module:name", that are imported when they are first needed.

    flags: a serving.cli.plugin_flags.PluginFlags. remotes: how a server that speaks a protocol is asked, by the protocol's name
    in a rollout (serving.traffic.remotes.protocols). log_formats: the logging.Formatter of a value of --log-format. compiled:
    the modules that a request passes (serving.compiled).
    """

    flags: str
    remotes: Mapping[str, str] = field(default_factory=dict)
    log_formats: Mapping[str, str] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()


def imported(place: str) -> Any:
    """Import and return the object at a place, "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
