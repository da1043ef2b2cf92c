"""The flags that a plugin adds to the command line."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from serving.cli.options import SourceOptions

Add = Callable[..., None]
"""Adds a flag: its name, what makes a value of its text, a sentence, and what argparse takes by name."""


class PluginFlags(ABC):
    """The flags of one plugin. tritonserver has none of them, so that nothing short means one of them."""

    @staticmethod
    @abstractmethod
    def add(add: Add) -> None:
        """Add the flags."""

    @staticmethod
    @abstractmethod
    def take(parser: argparse.ArgumentParser, values: dict[str, Any]) -> tuple[SourceOptions | None, list[str]]:
        """Take the flags out of the values, and those of the server that are given for them. Return the source of models that
        they ask for, None without one, and warnings."""
