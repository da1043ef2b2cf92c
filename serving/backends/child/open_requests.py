"""The requests that a child process has, from the batch that brings them to their final responses.

A batch answers those of a model that is not decoupled; all others are answered one response at a time, over the child's link.
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
from serving.core.errors import ServingError, worker_died
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from serving.core.response_flow import MAX_WAIT_S, OVERHEAD

WINDOW = 1 << 20  # bytes of responses of one request that the client has not taken, and one response more


class ResponsePace:
    """How far a child may run ahead with the responses of one decoupled request; its side is ResponseWindow.

    `tell` tells the child, by and by, how many bytes the client has taken; 0 says that it need not wait any more.
    """

    limits: ClassVar[tuple[int, int, float]] = (WINDOW, OVERHEAD, MAX_WAIT_S)  # as the child gets them

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
        """Count a response that the child has sent."""
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


class OpenRequest:
    """A request that the child may speak of. `moved_s`: when it was last heard of (monotonic)."""

    __slots__ = ("_pace", "moved_s", "request", "send")

    def __init__(self, request: InFlightRequest, send: Send) -> None:
        self.request = request
        self.send = send
        self.moved_s = time.monotonic()
        self._pace: ResponsePace | None = None

    def overdue(self, bound_s: float) -> bool:
        """Whether the child has let it wait longer than that. Time in which the client reads nothing is not the child's."""
        if self.request.finished or (self._pace is not None and self._pace.full):
            self.moved_s = time.monotonic()
        return time.monotonic() - self.moved_s > bound_s

    def pace(self, tell: Callable[[int], None]) -> None:
        """Let the child hold itself back; `tell` it what the client has taken."""
        flow = self.request.responder.flow
        if flow is not None:
            self._pace = ResponsePace(tell)
            self.request.on_cancel(self._pace.released)
            flow.join(self._pace)

    def sent(self, size: int) -> int:
        """Count a response of `size` bytes, and return what of it counts against the request's flow."""
        flow = self.request.responder.flow
        self.moved_s = time.monotonic()
        if self._pace is None or flow is None or self.request.finished:
            return 0
        self._pace.sent(size)
        flow.sent(size, self._pace)
        return size

    def close(self) -> None:
        """The child speaks of it no more."""
        flow = self.request.responder.flow
        if self._pace is not None and flow is not None:
            flow.leave(self._pace)
            self.request.forget_on_cancel(self._pace.released)


class OpenRequests:
    """The open requests of one child, by the keys under which it speaks of them.

    The loop's thread begins and ends batches; the thread that reads the child's link calls the `handlers`. `tell` hands the
    child a message of the server's own, from any thread.
    """

    def __init__(self, spec: ModelSpec, tell: Callable[[Taken], None]) -> None:
        self._spec = spec
        self._tell = tell
        self._outputs = [output.name for output in spec.config.output]
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._next_key = 1
        self._batches: dict[int, Batch] = {}  # that the child has, by the key of their first request
        self._open: dict[int, OpenRequest] = {}  # those that no batch's end answers
        self._answered: set[int] = set()  # of a batch that the child has, before its end
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
        """Note that the child gets a batch. Return the key of its first request; the others have those that follow."""
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
        """End the batch of this key. Those of its requests that are to be answered later are open still."""
        batch = self._batches[key]
        if batch.later:
            with self._changed:  # their answers may be here already
                del self._batches[key]
                self._keep_open(key, batch)
        else:
            del self._batches[key]
        if self._ended:  # meanwhile
            self._fail()

    def failed(self, key: int) -> None:
        """End the batch of this key, with all its requests: the child said that it failed."""
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
        """Wait until every open request is answered, cancelled or lost with the process."""
        with self._changed:
            while not self._ended and any(not one.request.finished for one in list(self._open.values())):
                self._changed.wait(0.2)  # a cancelled request tells nobody

    # -- on any thread ---------------------------------------------------------------------------------------------
    def overdue(self, bound_s: float) -> bool:
        """Whether a request that its batch's end does not answer has waited longer than that for its next response."""
        return any(one.overdue(bound_s) for one in list(self._open.values()))

    def find(self, key: int) -> InFlightRequest | None:
        """Return the open request of a key."""
        one = self._open.get(key) or self._executing(key)
        return None if one is None else one.request

    def find_all(self, keys: Sequence[int] | None) -> list[InFlightRequest]:
        """Return the open requests of the keys, or all that are open for None; [] where one of them is answered already."""
        if keys is None:
            executing = (
                [] if self._decoupled else [one for batch in list(self._batches.values()) for one in batch.requests]
            )
            return [*executing, *(one.request for one in list(self._open.values()))]
        found = [self.find(key) for key in keys]
        return [] if None in found else [request for request in found if request is not None]

    def _executing(self, key: int) -> OpenRequest | None:
        """Return the request of a key in a batch that the child has, of a model that is not decoupled."""
        for first, batch in list(self._batches.items()):
            if first <= key < first + len(batch.requests) and key not in self._answered and not self._decoupled:
                return OpenRequest(batch.requests[key - first], batch.send)
        return None

    def close(self, reason: str) -> None:
        """Fail what is open: the child has ended, as the sentence `reason` says."""
        self._reason = reason
        self._ended = True
        self._fail()
        with self._changed:
            self._changed.notify_all()

    def _fail(self) -> None:
        """Fail what is open for good; the ends of batches answer what is not decoupled."""
        error = worker_died(f"model '{self._spec.name}': {self._reason} before this request's final response")
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

    # -- what the child says of them -------------------------------------------------------------------------------
    def _respond(self, message: Mapping[str, Any], memory: Memory) -> None:
        key, final = message["key"], message["final"]
        if not isinstance(key, int) or not isinstance(final, bool):
            raise ProtocolError("a response has no key")
        with self._changed:
            one = self._open.get(key) or self._executing(key)
        if one is None:  # cancelled, failed or never there: nobody waits
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
        """Note that a request has its last response; its batch may not have ended yet."""
        with self._changed:
            if self._forget(key) is None:
                self._answered.add(key)
            self._changed.notify_all()

    def _release(self, message: Release, memory: Memory) -> None:
        """Forget a request that comes again, under another key; its responses so far were read before this."""
        self._forget(message["key"])

    def _cancelled(self, message: Cancelled, memory: Memory) -> AnswerBody:
        request = self.find(message["key"])
        return {"value": request is not None and request.cancelled}


def quietly(call: Callable[..., object], *arguments: object) -> None:
    """Call a loop that may be closed: the server has ended meanwhile."""
    try:
        call(*arguments)
    except RuntimeError:
        pass
