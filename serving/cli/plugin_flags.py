"""The flags that a plugin adds to the command line."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from serving.cli.options import SourceOptions

Add = Callable[..., None]
"""Adds a flag, given its name, the function that converts its text, the help text, and keyword arguments of argparse."""


class PluginFlags(ABC):
    """The flags of one plugin. An abbreviation that fits one of tritonserver's flags never means one of these."""

    @staticmethod
    @abstractmethod
    def add(add: Add) -> None:
        """Add the flags."""

    @staticmethod
    @abstractmethod
    def take(parser: argparse.ArgumentParser, values: dict[str, Any]) -> tuple[SourceOptions | None, list[str]]:
        """Remove from the values the plugin's flags, and the server's flags that the plugin reads instead of the server. Return
        the source of models that the flags require, or None, and warnings."""
