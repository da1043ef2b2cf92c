"""The core's end of the link to one worker. A message has all infer requests, or all answers, of one turn of the loop."""

from collections.abc import Callable
from typing import Any

from serving.core.errors import Exhausted, safely, unexpected
from serving.core.in_flight import InFlightRequest, SendTrace
from serving.core.request import InferenceRequest
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.server.inference_server import InferenceServer
from serving.workers.internal_connections import client_at
from serving.workers.link.answers import AnswerDetails, write_error, write_outputs
from serving.workers.link.link_connection import LinkConnection
from serving.workers.link.requests import RequestReader
from serving.workers.link.shared_area import AreaReader, AreaWriter

MAX_BACKLOG = 64 << 20  # bytes of answers that a worker may leave unread, not counting shared memory
_CLOGGED = "the frontend worker takes its answers too slowly: try again later"
_UNREADABLE = InFlightRequest.unanswered(InferenceRequest("", {}))  # replaces a request that could not be read


class WorkerLink(LinkConnection):
    """See the module's docstring. requests, responses: the shared memory of each direction."""

    def __init__(
        self, server: InferenceServer, requests: AreaReader, responses: AreaWriter, on_closed: Callable[[], None]
    ) -> None:
        super().__init__()
        self._server = server
        self._requests = requests
        self._responses = responses
        self._reader = RequestReader(requests)
        self._in_flight: dict[int, InFlightRequest] = {}
        self._answers: list[tuple[object, ...]] = []
        self._clogged = False  # True if the worker takes no answers, because it is stopped or too slow
        self._unsent: set[int] = set()  # numbers of requests whose trace waits until the client has taken the answer
        self._on_closed = on_closed

    def __len__(self) -> int:
        """Return how many requests of the worker are under way."""
        return len(self._in_flight)

    # -- in ----------------------------------------------------------------------------------------------------------
    def on_message(self, message: Any) -> None:
        requests, cancelled, freed, sent = message
        reader = self._reader
        kinds = reader.kinds
        infer = self._server.infer
        for number, named, identifier, arrival_ns, data, details in requests:
            try:
                kind = kinds.get(named) or reader.define(*named)
                asked = reader.read(kind, identifier, data, details)
                request = self._in_flight[number] = InFlightRequest(asked, _Answerer(self, number))
                request.arrival_ns = arrival_ns
                if details is None:
                    infer(request, kind.protocol, None, kind.headers)
                else:
                    headers = details[6] | kind.headers if kind.headers is not None else details[6]
                    infer(request, kind.protocol, client_at(details[5]), headers, details[7])
            except Exception as error:
                self._in_flight.setdefault(number, _UNREADABLE)
                self.answer(number, unexpected(error, "taking a request of a worker"))
                # The frames of the error would keep the request's memory until the cycle collector runs.
                error.__traceback__ = error.__context__ = None
                continue
            if request.stream is not None:  # a decoupled model
                self.answer(number, None)
                request.cancel()
        for number in cancelled:  # after the requests, because one may come and be cancelled in the same message
            found = self._in_flight.pop(number, None)
            if found is not None:
                found.cancel()
        for place in freed:
            self._responses.give_back(place)
        if sent:
            self._unsent.difference_update(sent)

    def on_closed(self) -> None:
        """Cancel the requests of the worker."""
        left, self._in_flight = self._in_flight, {}
        self._unsent.clear()
        for request in left.values():
            safely("cancelling a request of a worker that has ended", request.cancel)
        self._on_closed()

    # -- out ---------------------------------------------------------------------------------------------------------
    def answer(self, number: int, answer: Answer) -> None:
        """Answer a request, unless the worker has cancelled it. If the model is decoupled, the answer is None."""
        request = self._in_flight.pop(number, None)
        if request is None:
            return
        trace = request.trace
        details: AnswerDetails = None
        if trace is not None:
            details = ({}, True)
            self._follow(trace, number)
        if self._clogged:
            self._clogged = self.backlog > MAX_BACKLOG
        if isinstance(answer, InferenceResponse) and not self._clogged:
            if answer.parameters:
                details = (answer.parameters, trace is not None)
            self._answers.append(
                (number, answer.model_version, write_outputs(answer.outputs, self._responses), details)
            )
        else:
            error = Exhausted(_CLOGGED) if isinstance(answer, InferenceResponse) else answer
            self._answers.append((number, None, error and write_error(error), details))
        if not self._scheduled:
            self.wake()

    def _follow(self, trace: SendTrace, number: int) -> None:
        """Record in the trace that the answer is being sent and, when the worker reports it, that the client has taken it."""
        self._unsent.add(number)
        trace.sending()
        trace.sent(lambda: number in self._unsent)

    def outgoing(self) -> Any:
        self._clogged = self.backlog > MAX_BACKLOG
        answers, self._answers = self._answers, []
        return answers, self._requests.take_freed()

    def beat(self) -> None:
        """Report the freed places of shared memory, if no answer has reported them. Called every BEAT_S."""
        if self._requests.freed:
            self.wake()


class _Answerer:
    """Passes the answer of one request to the link."""

    __slots__ = ("_link", "_number")
    flow: ResponseFlow | None = None  # back-pressure is needed only for several answers

    def __init__(self, link: WorkerLink, number: int) -> None:
        self._link = link
        self._number = number

    def on_response(self, answer: Answer, final: bool) -> None:
        self._link.answer(self._number, answer if final else None)
