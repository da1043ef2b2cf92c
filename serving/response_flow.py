"""How far a decoupled model may run ahead of a client that reads slowly."""

import threading

MAX_AHEAD = 16 << 20  # bytes of responses that the client has not taken
MAX_WAIT_S = 60.0
OVERHEAD = 4096  # bytes that a response counts beside its tensors: small ones are many


class ResponseFlow:
    """Counts what has been sent and not yet taken. `wait` is called on a backend's thread, all else on the loop's."""

    def __init__(self, limit: int = MAX_AHEAD, max_wait_s: float = MAX_WAIT_S) -> None:
        self._limit = limit
        self._max_wait_s = max_wait_s
        self._ahead = 0
        self._closed = False
        self._changed = threading.Condition()

    def wait(self, size: int) -> bool:
        """Hold the sender until a response of `size` bytes may follow. False where the client took nothing for too long."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._closed or self._ahead < self._limit, self._max_wait_s)
            if free:
                self._ahead += size
            return free

    def taken(self, size: int) -> None:
        with self._changed:
            self._ahead -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody takes responses any more, so nobody needs to wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
