"""The declaration of a plugin, and the import of the objects that it names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The additions of a package. Each addition is named as "module:name", and is imported when it is first needed.

    flags: a serving.cli.plugin_flags.PluginFlags. remotes: clients for servers with other protocols, by the name that a rollout
    uses for the protocol (serving.traffic.remotes.protocols). log_formats: a logging.Formatter for each new value of
    --log-format. compiled: the names of the modules that are compiled (serving.compiled).
    """

    flags: str
    remotes: Mapping[str, str] = field(default_factory=dict)
    log_formats: Mapping[str, str] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()


def imported(place: str) -> Any:
    """Import and return the object that "module:name" names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
