"""Which version of a model the work at hand is about, for the lines that it logs.

It goes with the context: into tasks and callbacks that are begun meanwhile, and into threads that run in a copy of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from repository.core.log_line import mark_of, marked

OUTPUT = "serving.backends.child.output"  # logger of what models' processes print

_mark: ContextVar[str] = ContextVar("model of the log", default="")


@contextmanager
def about(model: str, version: int = 0) -> Iterator[None]:
    """Have what the block logs say that it is about a version of a model; 0 for none in particular."""
    token = _mark.set(mark_of(model, version))
    try:
        yield
    finally:
        _mark.reset(token)


def mark() -> str:
    """Return what a line that is logged here and now says of its model; "" where it is about none."""
    return _mark.get()


def model() -> tuple[str, int]:
    """Return the model and the version that a line logged here and now is about: "" for none, 0 for no version."""
    return marked(_mark.get())
