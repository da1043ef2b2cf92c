"""Limits how many bytes a decoupled model may send ahead of a client that reads slowly.

A backend on a thread of the server waits in `wait`. A backend in a separate process waits in that process (`join`, `sent`), so
that the server's thread that reads from the process is free for other requests.
"""

import threading
from collections import deque
from typing import Protocol

MAX_AHEAD = 16 << 20  # the most bytes of responses that the client has not yet taken
MAX_WAIT_S = 30.0
OVERHEAD = 4096  # bytes counted for each response in addition to its tensors, which may be tiny


class Pace(Protocol):
    """A sender that waits in a separate process. These methods are called to report how much of its responses the client has
    taken."""

    def note_taken(self, size: int) -> None:
        """The client has taken `size` bytes of its responses."""

    def released(self) -> None:
        """The client takes no more responses, so the sender need not wait."""


class ResponseFlow:
    """Counts the bytes sent and not yet taken, for all requests that share this object. Any thread may call any method."""

    def __init__(self, limit: int = MAX_AHEAD, max_wait_s: float = MAX_WAIT_S) -> None:
        self._limit = limit
        self._max_wait_s = max_wait_s
        self._ahead = 0
        self._closed = False
        self._changed = threading.Condition()
        self._owed: deque[tuple[Pace | None, int]] = deque()  # the sizes of responses not yet taken, in the order sent
        self._paces: set[Pace] = set()

    def join(self, pace: Pace) -> None:
        """Call `pace.released` when the client takes no more responses; immediately if it already takes none."""
        with self._changed:
            self._paces.add(pace)
            closed = self._closed
        if closed:
            pace.released()

    def leave(self, pace: Pace) -> None:
        """Undo `join`."""
        with self._changed:
            self._paces.discard(pace)

    def wait(self, size: int) -> bool:
        """Block the calling thread until a response of `size` bytes may be sent, and count it. Return False if the client
        did not take enough within `max_wait_s`."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._closed or self._ahead < self._limit, self._max_wait_s)
            if free:
                self._count(None, size)
            return free

    def sent(self, size: int, pace: Pace) -> None:
        """Count a response of `size` bytes by a sender in its own process. `pace` is notified when the client has it."""
        with self._changed:
            self._count(pace, size)

    def note_taken(self, size: int) -> None:
        """Note that the client has taken `size` bytes: wake the waiting threads, and notify the senders of these responses."""
        taken = []
        with self._changed:
            self._ahead -= size
            while size and self._owed:
                pace, part = self._owed.popleft()
                if part > size:
                    self._owed.appendleft((pace, part - size))
                    part = size
                size -= part
                if pace is not None:
                    taken.append((pace, part))
            self._changed.notify_all()
        for pace, part in taken:
            pace.note_taken(part)

    def close(self) -> None:
        """Note that the client takes no more responses, and release all senders."""
        with self._changed:
            self._closed = True
            self._owed.clear()
            paces = list(self._paces)
            self._changed.notify_all()
        for pace in paces:
            pace.released()

    def _count(self, pace: Pace | None, size: int) -> None:
        self._ahead += size
        self._owed.append((pace, size))
