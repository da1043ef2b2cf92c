"""The requests that a child process has, from their batch to their final responses.

The answer to a batch contains the responses of a model that is not decoupled. All other responses come one by one over the
child's link.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import (
    AnswerBody,
    Cancelled,
    Release,
    Taken,
)
from serving.backends.channel.tensors import Memory
from serving.backends.child.codec import (
    Handler,
    decode_error,
    decode_parameters,
    decode_tensors,
    requested_outputs,
)
from serving.core.batch import Batch, Send
from serving.core.errors import ProcessDied, ServingError
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from serving.core.response_flow import MAX_WAIT_S, OVERHEAD

WINDOW = 1 << 20  # at this many unread bytes of a request's responses, the child waits


class ResponsePace:
    """Limits the unread responses of one decoupled request. ResponseWindow is its counterpart in the child.

    tell: sends the child the number of bytes that the client has taken since the last call; 0 if the child need not wait.
    """

    # The arguments of the child's ResponseWindow.
    limits: ClassVar[tuple[int, int, float]] = (WINDOW, OVERHEAD, MAX_WAIT_S)

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._unreported = 0
        self._ahead = 0
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Return whether the child waits for the client."""
        return self._ahead >= WINDOW

    def sent(self, size: int) -> None:
        """Count a response that the child has sent."""
        with self._lock:
            self._ahead += size

    def note_taken(self, size: int) -> None:
        with self._lock:
            self._ahead -= size
            self._unreported += size
            if self._unreported < WINDOW // 2:
                return
            size, self._unreported = self._unreported, 0
        self._tell(size)

    def released(self) -> None:
        self._tell(0)


class OpenRequest:
    """A request that the child may send responses for. moved_s: when the last response was sent (monotonic seconds)."""

    __slots__ = ("_pace", "moved_s", "request", "send")

    def __init__(self, request: InFlightRequest, send: Send) -> None:
        self.request = request
        self.send = send
        self.moved_s = time.monotonic()
        self._pace: ResponsePace | None = None

    def overdue(self, bound_s: float) -> bool:
        """Return whether the next response takes longer than `bound_s`, without time in which the client reads nothing."""
        if self.request.finished or (self._pace is not None and self._pace.full):
            self.moved_s = time.monotonic()
        return time.monotonic() - self.moved_s > bound_s

    def pace(self, tell: Callable[[int], None]) -> None:
        """Make the child wait while the client does not read. tell: reports to the child how much the client has taken."""
        flow = self.request.responder.flow
        if flow is not None:
            self._pace = ResponsePace(tell)
            self.request.on_cancel(self._pace.released)
            flow.join(self._pace)

    def sent(self, size: int) -> int:
        """Count a response of `size` bytes, and return the bytes that count against the request's flow."""
        flow = self.request.responder.flow
        self.moved_s = time.monotonic()
        if self._pace is None or flow is None or self.request.finished:
            return 0
        self._pace.sent(size)
        flow.sent(size, self._pace)
        return size

    def close(self) -> None:
        """Note that the child sends no more responses for this request."""
        flow = self.request.responder.flow
        if self._pace is not None and flow is not None:
            flow.leave(self._pace)
            self.request.forget_on_cancel(self._pace.released)


class OpenRequests:
    """The open requests of one child, by the child's keys.

    The loop's thread begins and ends batches. The thread that reads the child's link calls the `handlers`. tell: sends the
    child a message, from any thread.
    """

    def __init__(self, spec: ModelSpec, tell: Callable[[Taken], None]) -> None:
        self._spec = spec
        self._tell = tell
        self._outputs = [output.name for output in spec.config.output]
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._next_key = 1
        self._batches: dict[int, Batch] = {}  # batches that the child has, by the key of their first request
        self._open: dict[int, OpenRequest] = {}  # requests whose responses come over the link
        self._answered: set[int] = set()  # keys of requests that were answered over the link before their batch ended
        self._changed = threading.Condition()
        self._ended = False
        self._reason = ""  # why the child ended
        self.handlers: Mapping[str, Handler] = {
            "response": self._respond,
            "release": self._release,
            "cancelled": self._cancelled,
        }

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def begin(self, batch: Batch) -> int:
        """Register a batch that the child gets. Return the key of its first request. The other requests have the next keys."""
        key = self._next_key
        self._next_key += len(batch.requests)
        self._batches[key] = batch
        if self._decoupled:
            for own, request in enumerate(batch.requests, key):
                self._open[own] = one = OpenRequest(request, batch.send)
                if request.responder.flow is not None:
                    one.pace(partial(self._tell_taken, own))
        return key

    def executed(self, key: int) -> None:
        """End the batch of this key. Requests that will be answered later stay open."""
        batch = self._batches[key]
        if batch.later:
            with self._changed:  # their answers may already have arrived
                del self._batches[key]
                self._keep_open(key, batch)
        else:
            del self._batches[key]
        if self._ended:  # the child has ended meanwhile
            self._fail()

    def failed(self, key: int) -> None:
        """End the batch of this key and all its requests, because the batch failed."""
        batch = self._batches.pop(key)
        if self._decoupled:
            for own in range(key, key + len(batch.requests)):
                self._forget(own)

    def _keep_open(self, key: int, batch: Batch) -> None:
        for own, request in enumerate(batch.requests, key):
            if request in batch.later and own not in self._answered:
                self._open[own] = OpenRequest(request, batch.send)
        self._answered.difference_update(range(key, key + len(batch.requests)))

    def wait(self) -> None:
        """Wait until every open request is answered or cancelled, or until the child has ended."""
        with self._changed:
            while not self._ended and any(not one.request.finished for one in list(self._open.values())):
                self._changed.wait(0.2)  # a cancelled request does not notify

    # -- on any thread ---------------------------------------------------------------------------------------------
    def overdue(self, bound_s: float) -> bool:
        """Return whether a request has waited longer than `bound_s` for its next response over the link."""
        return any(one.overdue(bound_s) for one in list(self._open.values()))

    def find(self, key: int) -> InFlightRequest | None:
        one = self._open.get(key) or self._executing(key)
        return None if one is None else one.request

    def find_all(self, keys: Sequence[int] | None) -> list[InFlightRequest]:
        """Return the open requests with these keys, or all open requests for None. Return [] if one is already answered."""
        if keys is None:
            executing = (
                [] if self._decoupled else [one for batch in list(self._batches.values()) for one in batch.requests]
            )
            return [*executing, *(one.request for one in list(self._open.values()))]
        found = [self.find(key) for key in keys]
        return [] if None in found else [request for request in found if request is not None]

    def _executing(self, key: int) -> OpenRequest | None:
        """Return the request of a key in a batch, or None if there is no such request or the model is decoupled."""
        for first, batch in list(self._batches.items()):
            if first <= key < first + len(batch.requests) and key not in self._answered and not self._decoupled:
                return OpenRequest(batch.requests[key - first], batch.send)
        return None

    def close(self, reason: str) -> None:
        """Fail the open requests, because the child has ended. reason: how it ended, for the message."""
        self._reason = reason
        self._ended = True
        self._fail()
        with self._changed:
            self._changed.notify_all()

    def _fail(self) -> None:
        """Fail the open requests. A batch of a model that is not decoupled is answered when the batch ends."""
        error = ProcessDied(f"model '{self._spec.name}': {self._reason} before this request's final response")
        for key in list(self._open):
            one = self._forget(key)
            if one is not None:
                quietly(one.send, one.request, error, True)

    def _forget(self, key: int) -> OpenRequest | None:
        one = self._open.pop(key, None)
        if one is not None:
            one.close()
        return one

    def _tell_taken(self, key: int, size: int) -> None:
        self._tell({"op": "taken", "key": key, "size": size})

    # -- messages of the child -------------------------------------------------------------------------------------
    def _respond(self, message: Mapping[str, Any], memory: Memory) -> None:
        key, final = message["key"], message["final"]
        if not isinstance(key, int) or not isinstance(final, bool):
            raise ProtocolError("a response has no key")
        with self._changed:
            one = self._open.get(key) or self._executing(key)
        if one is None:  # the request is cancelled, failed or unknown
            return
        request = one.request
        response: InferenceResponse | ServingError | None = None
        if "error" in message:
            response = decode_error(message["error"])
        elif "outputs" in message:
            found = decode_tensors(message["outputs"], memory)
            outputs = {name: found[name] for name in requested_outputs(request, self._outputs, found)}
            response = InferenceResponse(
                self._spec.name, self._spec.version, request.asked.id, outputs, decode_parameters(message)
            )
            response.size = one.sent(OVERHEAD + sum(row[4] for row in message["outputs"]))
        elif not final:
            raise ProtocolError("a response is neither tensors, nor an error, nor the end")
        if final:
            self._end(key)
        one.send(request, response, final)

    def _end(self, key: int) -> None:
        """Note that a request has its last response, although its batch may not have ended yet."""
        with self._changed:
            if self._forget(key) is None:
                self._answered.add(key)
            self._changed.notify_all()

    def _release(self, message: Release, memory: Memory) -> None:
        """Forget a request that will be executed again, with another key, now that its earlier responses are read."""
        self._forget(message["key"])

    def _cancelled(self, message: Cancelled, memory: Memory) -> AnswerBody:
        request = self.find(message["key"])
        return {"value": request is not None and request.cancelled}


def quietly(call: Callable[..., object], *arguments: object) -> None:
    """Call a method of a loop that may be closed, because the server has ended."""
    try:
        call(*arguments)
    except RuntimeError:
        pass
