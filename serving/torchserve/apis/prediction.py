"""Answers one prediction: in one piece or, if the handler streams, in chunks."""

from serving.core.errors import without_traceback
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.frontends.http1.exchange import JOIN_BELOW, Exchange
from serving.frontends.http1.message import Chunk, connection_header
from serving.torchserve.apis.answers import answer_of, body_of
from serving.torchserve.apis.replies import StandingHeaders, error_reply
from serving.torchserve.registry.errors import server_error
from serving.torchserve.telemetry.metrics import InferenceMetrics

BODILESS = (204, 304)  # statuses whose answers have no body


class PredictionContext:
    """The objects that a listener's predictions share. max_size: the most bytes of an answer, or of one piece of a stream."""

    __slots__ = ("headers", "max_size", "metrics")

    def __init__(self, headers: StandingHeaders, metrics: InferenceMetrics, max_size: int) -> None:
        self.headers = headers
        self.metrics = metrics
        self.max_size = max_size


class Prediction:
    """Answers the exchange with the model's response. `id`: the id of the request, which the handler also sees."""

    __slots__ = ("exchange", "id", "shared")

    def __init__(self, shared: PredictionContext, exchange: Exchange, identifier: str) -> None:
        self.shared = shared
        self.exchange = exchange
        self.id = identifier

    @property
    def flow(self) -> ResponseFlow | None:
        """Return None, because a model that answers once is not slowed down."""
        return None

    def on_response(self, answer: Answer, final: bool) -> None:
        if self.exchange.done:
            return
        if isinstance(answer, InferenceResponse) and final:
            try:
                self._send(answer)
            except Exception as error:
                self._fail(error)
        elif isinstance(answer, Exception):
            self._fail(answer)
        else:
            self._fail(server_error("the model sends several answers to a request, or none"))

    def _send(self, response: InferenceResponse) -> None:
        shared, exchange = self.shared, self.exchange
        body = body_of(response, shared.max_size)
        head = exchange.head
        if response.parameters or head.http_1_0 or exchange.pipeline.closing or head.method == "HEAD":
            self._send_in_full(response, body)
            return
        shared.metrics.replies[2] += 1
        start = shared.headers.success(self.id, len(body))
        exchange.send([start + body] if len(body) < JOIN_BELOW else [start, body])

    def _send_in_full(self, response: InferenceResponse, body: bytes) -> None:
        """Send an answer with the headers that the fast path leaves out: the handler's headers, and the header Connection."""
        exchange, answer = self.exchange, answer_of(response)
        self.shared.metrics.count_reply(answer.status)
        if answer.status >= 400:
            exchange.pipeline.closing = True
        lines = [answer.head(), self.shared.headers.lines(self.id)]
        if answer.status not in BODILESS:
            lines.append(f"content-length: {len(body)}\r\n")
        lines.append(connection_header(exchange.head, exchange.pipeline.closes_after(exchange)))
        chunks: list[Chunk] = [f"{''.join(lines)}\r\n".encode("latin-1", "replace")]
        if answer.status not in BODILESS and exchange.head.method != "HEAD":
            chunks.append(body)
        exchange.send(chunks)

    def _fail(self, error: Exception) -> None:
        reply = error_reply(error)
        self.shared.metrics.count_reply(reply.status)
        self.exchange.reply(reply, self.shared.headers.lines(self.id))


class StreamedPrediction(Prediction):
    """Answers with the responses as chunks, or as Prediction does if there is only one response."""

    __slots__ = ("_flow", "_sent", "_started")

    def __init__(self, shared: PredictionContext, exchange: Exchange, identifier: str) -> None:
        super().__init__(shared, exchange, identifier)
        self._flow = ResponseFlow()
        self._sent = 0  # bytes of the flow that the client has not taken yet
        self._started = False

    @property
    def flow(self) -> ResponseFlow | None:
        return self._flow

    def on_response(self, answer: Answer, final: bool) -> None:
        exchange = self.exchange
        if exchange.done:
            return
        if final and not self._started and answer is not None:
            super().on_response(answer, final)
            return
        try:
            if isinstance(answer, Exception):
                raise without_traceback(answer)
            if answer is not None:
                self._send_piece(answer)
            if final:
                self._end()
        except Exception as error:
            self._break_off(error)

    def _send_piece(self, response: InferenceResponse) -> None:
        """Send one piece. The first piece sets status and headers."""
        piece = body_of(response, self.shared.max_size)
        if not self._started:
            self._start(response)
        self._sent += response.size
        if piece and not self.exchange.done:
            self.exchange.write(piece)

    def _start(self, response: InferenceResponse | None) -> None:
        answer = answer_of(response)
        self.shared.metrics.count_reply(answer.status)
        if answer.status >= 400:
            self.exchange.pipeline.closing = True
        self._started = True
        start = f"{answer.head()}ts_stream_next: true\r\n{self.shared.headers.lines(self.id)}"
        self.exchange.start_stream("", on_drained=self._drained, start=start)
        if self.exchange.head.method == "HEAD":
            self.exchange.chunked = False
            self.exchange.end()

    def _end(self) -> None:
        if not self._started:
            self._start(None)
        if not self.exchange.done:
            self.exchange.end()
        self._flow.close()

    def _break_off(self, error: Exception) -> None:
        """End the answer early: with an error or, if the answer has already begun, by closing the connection."""
        exchange = self.exchange
        if not self._started:
            self._fail(error)
            exchange.cancel()
            return
        self.shared.metrics.count_reply(500)
        transport = exchange.pipeline.transport
        if transport is not None:
            transport.close()  # after the bytes already written

    def _drained(self) -> None:
        if self._sent:
            taken, self._sent = self._sent, 0
            self._flow.note_taken(taken)
