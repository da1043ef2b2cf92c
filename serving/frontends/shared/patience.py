"""How long the server waits for a client whose turn it is. What counts is that it comes on, not how much it sends in all.

A client that has begun a request owes, in each span of `stall_s`, either its end or `bytes_per_s` for each second. Where the
memory for requests runs short, it owes SCARCE times as much: who sends slowly holds it longest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from serving.cli.options import Options
from serving.resources.request_memory import RequestMemory

SCARCE = 64


class Turn(Enum):
    """What a client is to do next."""

    REQUEST = "send the rest of its request"
    ANSWER = "take the rest of its answer"
    ASK = "ask something on a stream that it has opened"


@dataclass(frozen=True, slots=True)
class Patience:
    """0 for without end."""

    stall_s: float = 30.0
    bytes_per_s: int = 1024
    idle_s: float = 3600.0
    unread_s: float = 300.0

    @classmethod
    def from_options(cls, options: Options) -> "Patience":
        return cls(options.request_stall_secs, options.request_min_rate, options.grpc_stream_idle_secs)

    def ends(self, turn: Turn) -> float:
        """Seconds."""
        return {Turn.REQUEST: self.stall_s, Turn.ANSWER: self.unread_s, Turn.ASK: self.idle_s}[turn]

    def owed(self, turn: Turn, memory: RequestMemory) -> int:
        """Bytes in that time."""
        if turn is not Turn.REQUEST:
            return 1
        return max(1, int(self.stall_s * self.bytes_per_s * (SCARCE if memory.scarce else 1)))


STANDARD = Patience()


class Waiter(Protocol):
    """A stream, as far as it waits for its peer."""

    def turn(self) -> tuple[Turn, int] | None:
        """What the peer is to do next, and how many bytes it has done of it; None while it is our turn."""

    def overdue(self, turn: Turn) -> None:
        """The peer has not done it in time."""


class Turns:
    """Since when each stream of a connection waits for its peer."""

    def __init__(self, patience: Patience, memory: RequestMemory) -> None:
        self._patience = patience
        self._memory = memory
        self._since: dict[Waiter, tuple[Turn, int, float]] = {}  # turn, bytes done then, time

    def watch(self, streams: Iterable[Waiter], now: float) -> None:
        """Tell the streams whose peer has not done in time what is its turn. Called every second or so."""
        since: dict[Waiter, tuple[Turn, int, float]] = {}
        overdue = []
        for stream in streams:
            found = stream.turn()
            if found is None:
                continue
            turn, done = found
            before = self._since.get(stream)
            ends = self._patience.ends(turn)
            if before is None or before[0] is not turn or not ends:
                since[stream] = (turn, done, now)
            elif now - before[2] < ends:
                since[stream] = before
            elif done - before[1] >= self._patience.owed(turn, self._memory):
                since[stream] = (turn, done, now)
            else:
                overdue.append((stream, turn))
        self._since = since
        for stream, turn in overdue:
            stream.overdue(turn)
