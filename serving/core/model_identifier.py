"""Identifies a model where several repositories may have one of the same name."""

from typing import NamedTuple


class ModelIdentifier(NamedTuple):
    """`namespace` is the model repository that has the model, as the command line gives it; "" without --model-namespacing."""

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """Return the form for the log; clients see the name alone."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name
