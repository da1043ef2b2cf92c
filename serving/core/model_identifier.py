"""Which model is meant, where a name alone may not say it."""

from typing import NamedTuple


class ModelIdentifier(NamedTuple):
    """`namespace` is the model repository that has the model, as the command line gives it; "" without --model-namespacing."""

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """For the log: a client is told the name alone."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name
