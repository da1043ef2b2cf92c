"""The table of plugins: the packages that may be installed."""

from importlib import import_module
from importlib.util import find_spec

from dashboard.plugins.plugin import Plugin

PACKAGES = ("dashboard.imports",)


def _is_there(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.has_location  # a folder without modules has no location


APPS = [name for name in PACKAGES if _is_there(name)]
PLUGINS: tuple[Plugin, ...] = tuple(import_module(f"{name}.plugin").PLUGIN for name in APPS)
