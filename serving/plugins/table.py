"""The table of plugins, and the packages that may provide one."""

from importlib import import_module
from importlib.util import find_spec

from serving.plugins.plugin import Plugin

PACKAGES = ("serving.torchserve",)


def _is_there(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.has_location  # a folder without modules has no location


PLUGINS: tuple[Plugin, ...] = tuple(import_module(f"{name}.plugin").PLUGIN for name in PACKAGES if _is_there(name))
