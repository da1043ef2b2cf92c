"""Makes a response sender wait while the client does not take its responses.

The server's side is `ResponsePace` in serving/backends/child/open_requests.py.
"""

import threading


class ResponseWindow:
    """Limits the responses of one request that the client has not yet taken.

    A sender waits while `limit` bytes or more are not taken. Each response counts `overhead` bytes in addition to its tensors.
    """

    def __init__(self, limit: int, overhead: int, wait_s: float) -> None:
        self._limit = limit
        self._overhead = overhead
        self._wait_s = wait_s
        self._ahead = 0
        self._changed = threading.Condition()

    def wait(self, size: int) -> bool:
        """Wait until a response with tensors of `size` bytes may be sent. Return False if that takes longer than `wait_s`."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self._limit or self._ahead < self._limit, self._wait_s)
            if free:
                self._ahead += size + self._overhead
            return free

    def note_taken(self, size: int) -> None:
        """Note that the client has taken `size` bytes. A size of 0 means that the sender need not wait any more."""
        with self._changed:
            self._ahead -= size
            if not size:
                self._limit = 0
            self._changed.notify_all()
