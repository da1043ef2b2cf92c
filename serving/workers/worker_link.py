"""The core's end of the link to one worker: infer requests come in, answers go out, all of one turn of the loop together."""

from collections.abc import Callable
from typing import Any

from serving.core.errors import safely, unexpected
from serving.core.in_flight import InFlightRequest, Responder
from serving.core.response import Answer, InferenceResponse
from serving.server.inference_server import InferenceServer
from serving.workers.internal_connections import client_at
from serving.workers.link.answers import Rest, write_error, write_outputs
from serving.workers.link.message_stream import MessageStream
from serving.workers.link.requests import RequestReader
from serving.workers.link.shared_area import AreaReader, AreaWriter

MAX_BACKLOG = 64 << 20  # bytes of answers beside the shared memory that a worker may leave waiting


class WorkerLink(MessageStream):
    """See the module's docstring. `requests` and `responses` are the shared memory of each direction."""

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
        self._unsent: set[int] = set()  # requests whose trace waits for the client to take the answer
        self._on_closed = on_closed

    def __len__(self) -> int:
        """Return how many requests of the worker are under way."""
        return len(self._in_flight)

    # -- in ----------------------------------------------------------------------------------------------------------
    def on_message(self, message: Any) -> None:
        requests, cancelled, freed, sent = message
        reader = self._reader
        infer = self._server.infer
        for number, named, identifier, arrival_ns, data, rest in requests:
            kind = reader.kind(named)
            try:
                request = InFlightRequest(reader.read(kind, identifier, data, rest), _Answerer(self, number))
            except Exception as error:
                self._send_answer((number, None, write_error(unexpected(error, "taking a request of a worker")), None))
                continue
            request.arrival_ns = arrival_ns
            self._in_flight[number] = request
            try:
                if rest is None:
                    infer(request, kind.protocol)
                else:
                    infer(request, kind.protocol, client_at(rest[5]), rest[6], rest[7])
            except Exception as error:
                self.answer(number, unexpected(error, "taking a request"))
            else:
                if request.stream is not None:  # a decoupled model
                    self.answer(number, None)
                    request.cancel()
        for number in cancelled:
            found = self._in_flight.pop(number, None)
            if found is not None:
                found.cancel()
        for place in freed:
            self._responses.give_back(place)
        if sent:
            self._unsent.difference_update(sent)

    def on_closed(self) -> None:
        """Cancel what nobody waits for any more."""
        left, self._in_flight = self._in_flight, {}
        self._unsent.clear()
        for request in left.values():
            safely("cancelling a request of a worker that has ended", request.cancel)
        self._on_closed()

    # -- out ---------------------------------------------------------------------------------------------------------
    def answer(self, number: int, answer: Answer) -> None:
        """Answer a request, unless the worker does not wait for it any more. None: its model is a decoupled one."""
        request = self._in_flight.pop(number, None)
        if request is None:
            return
        trace = request.trace
        if trace is not None:
            trace.sending()
        if isinstance(answer, InferenceResponse):
            rest: Rest = None
            if answer.parameters or trace is not None:
                rest = (answer.parameters, trace is not None)
            self._send_answer((number, answer.model_version, write_outputs(answer.outputs, self._responses), rest))
        else:
            error = None if answer is None else write_error(answer)
            self._send_answer((number, None, error, None if trace is None else ({}, True)))
        if trace is not None:
            self._unsent.add(number)
            trace.sent(lambda: number in self._unsent)

    def _send_answer(self, parts: tuple[object, ...]) -> None:
        self._answers.append(parts)
        if not self._scheduled:
            self.wake()

    def outgoing(self) -> Any:
        answers, self._answers = self._answers, []
        return answers, self._requests.take_freed()

    def beat(self) -> None:
        """Tell of places that are free, where no answer has done so. Called every second."""
        if self._requests.freed:
            self.wake()


class _Answerer(Responder):
    """Hands the answer of one request to the link."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: WorkerLink, number: int) -> None:
        self._link = link
        self._number = number

    def on_response(self, answer: Answer, final: bool) -> None:
        self._link.answer(self._number, answer if final else None)
