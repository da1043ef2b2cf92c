"""Static files that lie in an installed package."""

import builtins
from collections.abc import Iterable, Iterator
from pathlib import Path

import plotly
from django.contrib.staticfiles.finders import BaseFinder
from django.core import checks
from django.core.files.storage import FileSystemStorage


class PlotlyFinder(BaseFinder):
    """Serves plotly.js, and nothing else of the `plotly` package, as plotly/plotly.min.js."""

    filename = "plotly.min.js"

    def __init__(self, app_names: object = None) -> None:
        self.storage = FileSystemStorage(location=Path(plotly.__file__).parent / "package_data")
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]  # which Django's own finders set as well

    def check(self, **options: object) -> "builtins.list[checks.CheckMessage]":
        return []

    def find(self, path: str, find_all: bool = False, **options: object) -> str | list[str]:  # type: ignore[override]  # no overloads
        """Return the file's path, or with `find_all` a list of it; [] where `path` names another file."""
        if path != f"plotly/{self.filename}":
            return []
        found = self.storage.path(self.filename)
        return [found] if find_all else found

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, FileSystemStorage]]:
        yield self.filename, self.storage
