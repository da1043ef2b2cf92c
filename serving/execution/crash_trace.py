"""Runs functions in a frame that is named after a model and its file, so that the trace of a native crash names both."""

import builtins
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Protocol, TypeVar, TypeVarTuple, cast

from repository.core.crash_trace import Doing, frame_name

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class Runner(Protocol):
    """Calls a function with its arguments, and returns its result."""

    def __call__(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T: ...


def runner(doing: Doing, model: str, version: int, file: Path) -> Runner:
    """Return a function that calls its first argument with the others. The name of the returned function has the action, the
    model and the file."""
    name = frame_name(doing, model, version, file.name)
    # Compiled functions that `_run` calls take the builtins of their caller.
    return cast(Runner, FunctionType(_run.__code__.replace(co_name=name), {"__builtins__": builtins}, name))


def _run(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    return function(*arguments)
