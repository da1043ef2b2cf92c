"""Holds a response sender back while the client does not take what it has sent; its other side: backends/child/pacing.py."""

import threading


class Window:
    """`limit` bytes may be on their way, and one response more; each counts `overhead` beside its tensors."""

    def __init__(self, limit: int, overhead: int, wait_s: float) -> None:
        self._limit = limit
        self._overhead = overhead
        self._wait_s = wait_s
        self._ahead = 0
        self._changed = threading.Condition()

    def wait(self, size: int) -> bool:
        """Until a response with tensors of `size` bytes may go. False where the client took nothing for too long."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self._limit or self._ahead < self._limit, self._wait_s)
            if free:
                self._ahead += size + self._overhead
            return free

    def taken(self, size: int) -> None:
        """What the server says: bytes, 0 for no need to wait any more."""
        with self._changed:
            self._ahead -= size
            if not size:
                self._limit = 0
            self._changed.notify_all()
