"""The flags that a plugin adds to the command line."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from serving.cli.options import SourceOptions

Add = Callable[..., None]
"""Adds a flag: its name, the function that converts its text, a sentence, and keyword arguments of argparse."""


class PluginFlags(ABC):
    """The flags of one plugin. tritonserver has none of them, so no abbreviation means one of them."""

    @staticmethod
    @abstractmethod
    def add(add: Add) -> None:
        """Add the flags."""

    @staticmethod
    @abstractmethod
    def take(parser: argparse.ArgumentParser, values: dict[str, Any]) -> tuple[SourceOptions | None, list[str]]:
        """Remove the plugin's flags, and the server's flags that were given for them, from the values. Return the source of
        models that they ask for, None without one, and warnings."""
