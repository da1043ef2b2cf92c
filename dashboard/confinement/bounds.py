"""The bounds of a program, and the sentence that names the one that ended it."""

import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from repository.core.quantities import duration, three_digits


class Bound(StrEnum):
    """The bounds on a program; the values stand in `Outcome.bound`."""

    MEMORY = "memory"
    CPU = "CPU time"
    WALL = "time"
    PROCESSES = "processes"
    FILES = "files"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program and all that it starts may take together.

    processes: processes and threads. file_bytes: of all files in its folder, and of each file. output_bytes: of all that it
    prints.
    """

    memory_bytes: int
    cpu_seconds: int
    wall_seconds: float
    processes: int
    file_bytes: int
    output_bytes: int

    def sentence(self, bound: Bound) -> str:
        """Return what is allowed, and what to do next."""
        return {
            Bound.MEMORY: f"it may take {_size(self.memory_bytes)} of memory: give it less data, or allow it more memory",
            Bound.CPU: f"it may take {duration(self.cpu_seconds)} of CPU time: give it less work, or allow it more time",
            Bound.WALL: f"it may take {duration(self.wall_seconds)}: give it less work, or allow it more time",
            Bound.PROCESSES: f"it may have {self.processes} processes and threads: let it start fewer, or allow it more",
            Bound.FILES: f"it may have {_size(self.file_bytes)} of files: let it write less, or allow it more",
            Bound.OUTPUT: f"it may print {_size(self.output_bytes)}: let it print less, or allow it more",
        }[bound]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a program. status: its exit status, minus a signal's number. bound: the bound that ended it, if one did.
    sentence: why it failed, empty if it did not."""

    status: int
    bound: Bound | None = None
    sentence: str = ""


def outcome(limits: Limits, *, status: int, bound: Bound | None, last_line: str) -> Outcome:
    """Return the outcome of a program that has ended, or that a bound has ended."""
    if bound is None and status == -signal.SIGXCPU:
        bound = Bound.CPU
    if bound is not None:
        return Outcome(status=status, bound=bound, sentence=f"The program was ended: {limits.sentence(bound)}.")
    if status == -signal.SIGKILL:
        return Outcome(status=status, sentence="The program was killed: perhaps the machine has too little memory.")
    if status < 0:
        return Outcome(status=status, sentence=f"The program crashed ({_signal(-status)}).")
    if status == 0:
        return Outcome(status=status)
    reason = f"The program ended with status {status}"
    reason += f"; its last line: {last_line[:500]}" if last_line else " and printed nothing"
    return Outcome(status=status, sentence=f"{reason}{_hint(limits, last_line)}.")


def _hint(limits: Limits, line: str) -> str:
    """Return what a program's last line says about a bound. The words are those of the C library, C++ and Python."""
    for words, sentence in (
        ((os.strerror(12), "MemoryError", "bad_alloc"), limits.sentence(Bound.MEMORY)),
        ((os.strerror(11), "can't start new thread"), limits.sentence(Bound.PROCESSES)),
        ((os.strerror(27),), limits.sentence(Bound.FILES)),
        ((os.strerror(13), os.strerror(18)), "it may read what it was given, and write its own folder alone"),
        ((os.strerror(101),), "it may open no connection"),
    ):
        if any(word in line for word in words):
            return f" ({sentence})"
    return ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _size(value: int) -> str:
    """Bytes as `2 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{three_digits(value)} {unit}"
        value /= 1024  # type: ignore[assignment]
    return f"{three_digits(value)} GiB"
