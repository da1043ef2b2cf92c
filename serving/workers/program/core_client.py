"""The client of the core in a worker. It replaces the InferenceServer that the frontends call.

Infer requests are sent over the link. Every other request is sent over an internal connection to the core's frontends.
NeedsCoreError is raised for an infer request that cannot be sent over the link.
"""

import asyncio
import marshal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from serving.cli import trace_config
from serving.cli.options import Options
from serving.core.errors import unavailable
from serving.core.in_flight import InFlightRequest, ReceiveTimes
from serving.core.request import NO_SEQUENCE, InferenceRequest
from serving.core.response import InferenceResponse
from serving.resources.request_memory import RequestMemory
from serving.workers.link.answers import AnswerDetails, discard_outputs, read_error, read_outputs
from serving.workers.link.link_connection import LinkConnection
from serving.workers.link.requests import RequestDetails, RequestWriter
from serving.workers.link.shared_area import AreaReader, AreaWriter
from serving.workers.link.shared_page import SharedPage

_RETRY_S = 0.002  # pause between two attempts to pass a connection to a busy core
_TRACE_CONTEXT = ("traceparent", "tracestate")

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NeedsCoreError(Exception):
    """The request needs something that only the core has, and must be forwarded unchanged."""


class NoSharedMemory:
    """Replaces the clients' shared memory, which only the core has."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsCoreError


class CoreClient(LinkConnection):
    """See the module's docstring. All methods run on the loop's thread."""

    def __init__(
        self,
        options: Options,
        page: SharedPage,
        memory: RequestMemory,
        areas: tuple[AreaWriter, AreaReader],
        control: socket.socket,
        on_closed: Callable[[], None],
    ) -> None:
        """areas: the shared memory of requests, and of responses. control: the socket that passes descriptors to the core."""
        super().__init__()
        self.options = options
        self.request_memory = memory
        self.shared_memory = NoSharedMemory()
        self._page = page
        self._requests_area, self._responses_area = areas
        self._writer = RequestWriter(areas[0])
        self._control = control
        self._on_closed = on_closed
        self._shows_peer = options.request_log_client != "off"
        self._shows_caller = options.auth_file is not None  # because the core counts usage, and knows quotas
        config = trace_config.read(options.trace_config)
        self._trace_headers = _TRACE_CONTEXT if config is not None and config.timestamps else ()
        self.show_headers(())
        self._next_number = 0
        self._in_flight: dict[int, InFlightRequest] = {}
        self._requests: list[tuple[object, ...]] = []
        self._cancelled: list[int] = []
        self._sent: list[int] = []

    def show_headers(self, names: Sequence[str]) -> None:
        """Begin to send these headers of clients to the core, in addition to the headers that traces need."""
        self._shown_headers = (*self._trace_headers, *names)
        self._shows_client = self._shows_peer or bool(self._shown_headers)

    # -- as an InferenceServer -----------------------------------------------------------------------------------------
    @property
    def tracing(self) -> bool:
        return self._page.tracing

    def infer(
        self,
        request: InFlightRequest,
        protocol: str = "",
        transport: asyncio.BaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        received: ReceiveTimes = None,
    ) -> None:
        """Send the request to the core, which checks it. The request's responder gets the answer or the error."""
        asked = request.asked
        if self.transport is None:
            raise unavailable("the server is ending")
        number = self._next_number
        self._next_number = number + 1
        details = None
        if (
            asked.parameters
            or asked.priority
            or asked.timeout_us
            or asked.sequence != NO_SEQUENCE
            or asked.output_targets
            or received is not None
            or self._shows_client
        ):
            details = self._details(asked, transport, headers, received)
        caller = headers.get("authorization", "") if self._shows_caller and headers is not None else ""
        self._requests.append(self._writer.write(number, request, protocol, details, caller))
        self._in_flight[number] = request
        request.accept(_SentRequest(self, number))
        if received is not None:
            request.trace = _SentTrace(self, number)
        # Release the inputs, which were copied into the shared memory or the message.
        asked.inputs = request.inputs = {}
        if not self._scheduled:
            self.wake()

    def _details(
        self,
        asked: InferenceRequest,
        transport: asyncio.BaseTransport | None,
        headers: Mapping[str, str] | None,
        received: ReceiveTimes,
    ) -> RequestDetails:
        """Return the fields that few requests have."""
        peer = transport.get_extra_info("peername") if self._shows_peer and transport is not None else None
        return RequestDetails(
            dict(asked.parameters),
            asked.priority,
            asked.timeout_us,
            asked.sequence,
            {name: target.rule.classes for name, target in asked.output_targets.items()},
            peer and tuple(peer[:2]),
            {name: headers[name] for name in self._shown_headers if name in headers} if headers else {},
            received,
        )

    def request_cancelled(self, number: int) -> None:
        self._cancelled.append(number)
        self.wake()

    def request_ended(self, number: int) -> None:
        self._in_flight.pop(number, None)

    def answer_sent(self, number: int) -> None:
        """Report to the core that the client has taken the answer, for its trace."""
        self._sent.append(number)
        self.wake()

    # -- the link ----------------------------------------------------------------------------------------------------
    def outgoing(self) -> Any:
        message = (self._requests, self._cancelled, self._responses_area.take_freed(), self._sent)
        self._requests, self._cancelled, self._sent = [], [], []
        return message

    def on_message(self, message: Any) -> None:
        answers, freed = message
        for number, version, outputs, details in answers:
            request = self._in_flight.get(number)
            if request is not None:
                self._answer(number, request, version, outputs, details)
            elif version is not None:
                discard_outputs(outputs, self._responses_area)
        for place in freed:
            self._requests_area.give_back(place)
        if self._responses_area.freed:
            self.wake()

    def _answer(
        self, number: int, request: InFlightRequest, version: int | None, outputs: Any, details: AnswerDetails
    ) -> None:
        if details is not None and details[1]:
            if isinstance(request.trace, _SentTrace):
                request.trace.wanted = True
            else:  # the request came before this worker knew that tracing is on
                self.answer_sent(number)
        if version is None:
            request.respond(None if outputs is None else read_error(outputs))
            return
        asked = request.asked
        response = InferenceResponse(asked.model_name, version, asked.id, read_outputs(outputs, self._responses_area))
        if details is not None:
            response.parameters = details[0]
        request.respond(response)

    def beat(self) -> None:
        """Report the freed places of shared memory, if no request has reported them. Called every BEAT_S."""
        if self._responses_area.freed:
            self.wake()

    def on_closed(self) -> None:
        left, self._in_flight = self._in_flight, {}
        for request in left.values():
            request.respond(unavailable("the server has ended"))
        self._on_closed()

    # -- internal connections ----------------------------------------------------------------------------------------
    async def connect(self, kind: str, peer: Any, factory: Callable[[], P]) -> P:
        """Open a connection to the core's frontend of `kind` ("http", "grpc") on behalf of the client at `peer`."""
        address = (str(peer[0]), int(peer[1])) if peer else None
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                await self._pass(theirs, marshal.dumps((kind, address)))
            except BaseException:
                mine.close()
                raise
        mine.setblocking(False)
        _, protocol = await self._loop.create_unix_connection(factory, sock=mine)
        return protocol

    async def _pass(self, connection: socket.socket, message: bytes) -> None:
        """Pass a connection to the core. Wait while the core is busy."""
        while True:
            try:
                socket.send_fds(self._control, [message], [connection.fileno()])
                return
            except BlockingIOError:
                await asyncio.sleep(_RETRY_S)
            except OSError:
                raise unavailable("the server is ending") from None


class _SentRequest:
    """The owner of a request that is under way in the core."""

    __slots__ = ("_client", "_number")

    def __init__(self, client: CoreClient, number: int) -> None:
        self._client = client
        self._number = number

    def request_cancelled(self, request: InFlightRequest) -> None:
        self._client.request_cancelled(self._number)

    def request_ended(self, request: InFlightRequest) -> None:
        self._client.request_ended(self._number)


class _SentTrace:
    """A SendTrace that reports to the core when the answer has been sent. wanted: whether the core traces this request."""

    __slots__ = ("_client", "_number", "wanted")

    def __init__(self, client: CoreClient, number: int) -> None:
        self._client = client
        self._number = number
        self.wanted = False

    def sending(self) -> None:
        """Do nothing: the core recorded this time when it sent the answer to the worker."""

    def sent(self, waiting: Callable[[], bool]) -> None:
        if self.wanted:
            self._look(waiting)

    def _look(self, waiting: Callable[[], bool]) -> None:
        if waiting():
            asyncio.get_running_loop().call_later(0.01, self._look, waiting)
        else:
            self._client.answer_sent(self._number)
