"""The flags that a plugin adds to the command line."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from serving.cli.options import SourceOptions

Add = Callable[..., None]
"""Adds a flag: its name, the function that converts its text, a sentence, and keyword arguments of argparse."""


class PluginFlags(ABC):
    """The flags of one plugin. An abbreviation of one of tritonserver's flags never means one of these."""

    @staticmethod
    @abstractmethod
    def add(add: Add) -> None:
        """Add the flags."""

    @staticmethod
    @abstractmethod
    def take(parser: argparse.ArgumentParser, values: dict[str, Any]) -> tuple[SourceOptions | None, list[str]]:
        """Remove from the values the plugin's flags, and the flags of the server that the plugin reads instead of the server.
        Return the source of models that the flags ask for, or None, and warnings."""
