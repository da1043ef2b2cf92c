"""Identifies a model even if several repositories have a model of that name."""

from typing import NamedTuple


class ModelIdentifier(NamedTuple):
    """`namespace` is the path of the model's repository as on the command line; "" without --model-namespacing."""

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """Return the form for the log; clients see only the name."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name
