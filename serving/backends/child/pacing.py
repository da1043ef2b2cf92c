"""How far a child process may run ahead with the responses of one decoupled request; its side is child_program/pacing.py."""

import threading
import time
from collections.abc import Callable

from serving.core.batch import Send
from serving.core.in_flight import InFlightRequest
from serving.core.response_flow import MAX_WAIT_S, OVERHEAD

WINDOW = 1 << 20  # bytes of responses of one request that the client has not taken, and one response more


class ChildPace:
    """Tells the child what the client has taken, by and by; 0 says that it need not wait any more."""

    limits = (WINDOW, OVERHEAD, MAX_WAIT_S)  # as the child gets them

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._untold = 0
        self._ahead = 0
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Whether the child waits for the client."""
        return self._ahead >= WINDOW

    def sent(self, size: int) -> None:
        with self._lock:
            self._ahead += size

    def taken(self, size: int) -> None:
        with self._lock:
            self._ahead -= size
            self._untold += size
            if self._untold < WINDOW // 2:
                return
            told, self._untold = self._untold, 0
        self._tell(told)

    def released(self) -> None:
        self._tell(0)


class OpenStream:
    """A request that the child may speak of. `moved_s`: when it was last heard of (monotonic)."""

    __slots__ = ("_pace", "moved_s", "request", "send")

    def __init__(self, request: InFlightRequest, send: Send) -> None:
        self.request = request
        self.send = send
        self.moved_s = time.monotonic()
        self._pace: ChildPace | None = None

    def overdue(self, bound_s: float) -> bool:
        """Whether the child has let it wait longer than that. Time in which the client reads nothing is not the child's."""
        if self.request.finished or (self._pace is not None and self._pace.full):
            self.moved_s = time.monotonic()
        return time.monotonic() - self.moved_s > bound_s

    def pace(self, tell: Callable[[int], None]) -> None:
        """The child holds itself back; `tell` it what the client has taken."""
        flow = self.request.responder.flow
        if flow is not None:
            self._pace = ChildPace(tell)
            self.request.on_cancel(self._pace.released)
            flow.join(self._pace)

    def sent(self, size: int) -> int:
        """Count a response of `size` bytes; what counts against the request's flow."""
        flow = self.request.responder.flow
        self.moved_s = time.monotonic()
        if self._pace is None or flow is None or self.request.finished:
            return 0
        self._pace.sent(size)
        flow.sent(size, self._pace)
        return size

    def close(self) -> None:
        flow = self.request.responder.flow
        if self._pace is not None and flow is not None:
            flow.leave(self._pace)
            self.request.forget_on_cancel(self._pace.released)
