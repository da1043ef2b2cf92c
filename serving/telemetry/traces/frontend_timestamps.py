"""Records when a frontend receives a traced request and sends its answer: HTTP_RECV_START, ..., GRPC_SEND_END.

Source of the names: Triton, docs/user_guide/trace.md.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from serving.core.in_flight import ReceiveTimes

_RECEIVE = {"http": "HTTP_RECV", "grpc": "GRPC_WAITREAD"}
_SEND = {"http": "HTTP_SEND", "grpc": "GRPC_SEND"}
# The first and the longest pause between two checks of whether the client has taken an answer. The pause doubles each time.
_SECOND_LOOK_S, _LAST_LOOK_S = 0.001, 0.1


class FrontendTimestamps(ABC):
    """A SendTrace for traces of any kind. Holds keep the trace open (`hold`, `release`): a request holds it until its last
    answer, and an answer until the client has taken it."""

    __slots__ = ("_first_sent", "_holds", "_last_sent", "protocol")

    def __init__(self, protocol: str = "") -> None:
        self.protocol = protocol
        self._holds = 1
        self._first_sent = self._last_sent = False

    @abstractmethod
    def add_timestamp(self, name: str, ns: int) -> None:
        """Add a timestamp. ns: the time of the monotonic clock."""

    @abstractmethod
    def complete(self) -> None:
        """End the trace. No more timestamps are added."""

    def receive(self, received: ReceiveTimes, arrival_ns: int) -> None:
        """Add the timestamps of receiving the request. received: when the frontend began to read it, and when it ended."""
        if self.protocol in _RECEIVE:
            began, ended = received or (arrival_ns, arrival_ns)
            self.add_timestamp(f"{_RECEIVE[self.protocol]}_START", min(began, arrival_ns))
            self.add_timestamp(f"{_RECEIVE[self.protocol]}_END", min(ended, arrival_ns))

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self.complete()

    def answered_last(self) -> None:
        """Release the trace after the last answer. This is done in the loop's next turn, because the frontend gets the answer
        in this turn and may hold the trace."""
        if self.protocol:
            asyncio.get_running_loop().call_soon(self.release)
        else:
            self.release()

    def sending(self) -> None:
        """Add the timestamp at which the first answer begins to be sent.

        If one answer consists of several requests, only the trace of the last request has this time, because the other traces
        are complete earlier.
        """
        if self._first_sent or not self._holds or self.protocol not in _SEND:
            return
        self._first_sent = True
        self.hold()
        now = time.monotonic_ns()
        self.add_timestamp("INFER_RESPONSE_COMPLETE", now)
        self.add_timestamp(f"{_SEND[self.protocol]}_START", now)

    def sent(self, waiting: Callable[[], bool]) -> None:
        """Add the timestamp at which the client has taken the last answer. Called after the answer was written.
        waiting: returns whether the client has not yet taken all of it."""
        if self._first_sent and not self._last_sent:
            self._last_sent = True
            self._look(waiting, 0.0)

    def _look(self, waiting: Callable[[], bool], delay_s: float) -> None:
        if waiting():
            later = min(max(2 * delay_s, _SECOND_LOOK_S), _LAST_LOOK_S)
            asyncio.get_running_loop().call_later(delay_s, self._look, waiting, later)
            return
        self.add_timestamp(f"{_SEND[self.protocol]}_END", time.monotonic_ns())
        self.release()
