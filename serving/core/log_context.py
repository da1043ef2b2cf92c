"""Marks the log lines of the current work with its model and version.

The mark is a context variable, so tasks and callbacks inherit it, and so do threads that run in a copy of the context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from repository.core.log_line import mark_of, marked

OUTPUT = "serving.backends.child.output"  # the logger for the output of models' processes

_mark: ContextVar[str] = ContextVar("model of the log", default="")


@contextmanager
def about(model: str, version: int = 0) -> Iterator[None]:
    """Mark the log lines of a block with a model and its version; 0 for no version."""
    token = _mark.set(mark_of(model, version))
    try:
        yield
    finally:
        _mark.reset(token)


def mark() -> str:
    """Return the mark for a log line of the current context; "" without a model."""
    return _mark.get()


def model() -> tuple[str, int]:
    """Return the model and the version of the current context: "" without a model, 0 without a version."""
    return marked(_mark.get())
