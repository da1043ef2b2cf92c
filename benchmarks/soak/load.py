"""Raw clients, which use less CPU than the server, and a few stock clients, all in one thread with one request each."""

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast

import hpack
import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio
from tritonclient.grpc import service_pb2 as pb

from benchmarks.soak import models, questions
from benchmarks.soak.questions import TITLES, Question
from benchmarks.soak.record import HANGS_S, Segment
from dashboard.loads.http2_client import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    Http2Client,
    frame,
    length_prefixed,
)

MESSAGES_A_STREAM = 200
AFTER_A_FAILURE_S = 0.02
_JSON_DATA = re.compile(rb'"data":\[([^\]]*)\]')
# (model, reason, time of sending) -> (the disturbances at that time, whether they excuse the failure)
Judge = Callable[[str, str, float], tuple[str, bool]]


class Traffic:
    """All connections. factors: the factors of all versions that were published so far."""

    def __init__(self, http: str, grpc: str, segment: Segment, judge: Judge) -> None:
        self.http, self.grpc = http, grpc
        self.factors = {2.0}
        self.running = False
        self._segment = segment
        self._judge = judge
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[Client] = []

    # -- life ----------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self.running = True
        plan: list[tuple[int, Callable[[Traffic], Client]]] = [
            (10, lambda traffic: HttpClient(traffic, questions.mixed)),
            (4, lambda traffic: HttpClient(traffic, questions.sequences)),
            (8, lambda traffic: GrpcClient(traffic, questions.mixed)),
            (2, lambda traffic: GrpcClient(traffic, questions.sequences)),
            (4, lambda traffic: StreamClient(traffic, questions.mixed)),
            (2, lambda traffic: StreamClient(traffic, questions.sequences)),
            (2, lambda traffic: StreamClient(traffic, questions.decoupled)),
        ]
        self._clients = [make(self) for count, make in plan for _ in range(count)]
        self._tasks = [asyncio.create_task(client.keep()) for client in self._clients]
        self._tasks += [asyncio.create_task(run(self)) for run in (stock_http, stock_grpc) for _ in range(2)]
        self._tasks.append(asyncio.create_task(self._look_for_hangs()))

    async def stop(self) -> None:
        """Wait for the answers of all requests, and close the connections."""
        self.running = False
        for client in self._clients:
            client.close_when_idle()
        await asyncio.gather(*self._tasks)

    async def _look_for_hangs(self) -> None:
        while self.running or any(client.asked is not None for client in self._clients):
            for client in self._clients:
                client.end_if_hanging()
            await asyncio.sleep(0.5)

    # -- results -------------------------------------------------------------------------------------------------------
    def answered(self, transport: str, question: Question) -> None:
        self._segment.answered[f"{transport}, {TITLES[question.model]}"] += 1

    def failed(self, transport: str, question: Question | None, reason: str, sent: float) -> None:
        model = question.model if question else ""
        during, expected = self._judge(model, reason, sent)
        kind = f"{transport}, {TITLES[model]}" if question else f"{transport}, connecting"
        self._segment.fail(kind, reason, during, expected)


class Client(asyncio.Protocol):
    """One connection, which reconnects when it is closed. Subclasses write a request and read its answers."""

    transport_name = ""

    def __init__(self, traffic: Traffic, ask: Callable[[], Iterator[Question]]) -> None:
        self._traffic = traffic
        self._new = ask
        self._questions = ask()
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._sent = 0.0
        self.asked: Question | None = None
        self._answers: list[float] = []
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def address(self) -> str:
        return self._traffic.grpc

    async def keep(self) -> None:
        loop = asyncio.get_running_loop()
        host, _, port = self.address.rpartition(":")
        while self._traffic.running:
            self._lost = loop.create_future()
            try:
                await loop.create_connection(lambda: self, host, int(port))
            except OSError as error:
                reason = f"connecting: {type(error).__name__}"
                self._traffic.failed(self.transport_name, None, reason, time.monotonic())
                await asyncio.sleep(0.1)
                continue
            await self._lost

    # -- the connection ------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._rest = b""
        self.opened()
        self.next()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.asked is not None:
            self.failed("the connection ended" + (f": {type(error).__name__}" if error else ""))
        if not self._lost.done():
            self._lost.set_result(None)

    def opened(self) -> None:
        """Write the bytes that precede the first request."""

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def ask(self, question: Question) -> None:
        raise NotImplementedError

    # -- requests ------------------------------------------------------------------------------------------------------
    def next(self) -> None:
        if self._transport is None or self.asked is not None:
            return
        if not self._traffic.running:
            self._transport.close()
            return
        self.asked = next(self._questions)
        self._answers = []
        self._sent = time.monotonic()
        self.ask(self.asked)

    def answer(self, value: float) -> None:
        """Note one response. The request ends after all its responses."""
        if self.asked is not None:
            self._answers.append(value)

    def over(self) -> None:
        """End a request after its last response: check its answers, and send the next request."""
        question = self.asked
        if question is None:
            return
        wrong = question.wrong(self._answers, self._traffic.factors)
        if wrong:
            self.failed(wrong)
            return
        self.asked = None
        self._traffic.answered(self.transport_name, question)
        self.next()

    def failed(self, reason: str) -> None:
        question, self.asked = self.asked, None
        self._questions = self._new()  # after a failure in a sequence, a new sequence begins
        self._traffic.failed(self.transport_name, question, reason, self._sent)
        asyncio.get_running_loop().call_later(AFTER_A_FAILURE_S, self.next)

    def end_if_hanging(self) -> None:
        if self.asked is not None and time.monotonic() - self._sent > HANGS_S:
            self.failed(f"no answer in {HANGS_S:.0f} s")
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close_when_idle(self) -> None:
        if self.asked is None and self._transport is not None:
            self._transport.close()


class HttpClient(Client):
    """A client over HTTP/1.1 with JSON."""

    transport_name = "HTTP"

    @property
    def address(self) -> str:
        return self._traffic.http

    def ask(self, question: Question) -> None:
        self.write(questions.as_http(question))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        at = data.lower().find(b"content-length:", 0, end)
        if end < 0 or len(data) < end + 4 + int(data[at + 15 : data.find(b"\r\n", at)]):
            self._rest = data
            return
        self._rest = b""
        body = data[end + 4 :]
        if data.startswith(b"HTTP/1.1 200"):
            found = _JSON_DATA.search(body)
            if found:
                self.answer(float(found[1]))
            self.over()
        else:
            self.failed(f"{data[9:12].decode()} {body[:200].decode(errors='replace')}")


@lru_cache(10_000)
def fields_of(block: bytes) -> dict[str, str]:
    """Return the fields of a header block. The server never uses the dynamic table, so that each block can be read alone."""
    return {str(name): str(value) for name, value in hpack.Decoder().decode(block)}


class GrpcClient(Http2Client, Client):
    """A client over HTTP/2 with one unary call after the other, each on a new stream."""

    transport_name = "gRPC"
    method = "ModelInfer"

    def opened(self) -> None:
        self.start_http2()
        self._message = b""

    def write(self, data: bytes) -> None:
        Client.write(self, data)

    def headers(self) -> bytes:
        return frame(HEADERS, END_HEADERS, self.stream_id, self.header_block(self.method))

    def ask(self, question: Question) -> None:
        self.stream_id += 2
        self._message = b""
        self.write(
            self.headers() + frame(DATA, END_STREAM, self.stream_id, length_prefixed(questions.as_grpc(question)))
        )

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == DATA and stream_id == self.stream_id:
            self._message += payload
            while len(self._message) >= 5 and len(self._message) >= (end := 5 + _length(self._message)):
                message, self._message = self._message[5:end], self._message[end:]
                self.message(message)
        elif kind == HEADERS and flags & END_STREAM:
            self.trailers(stream_id, fields_of(payload))
        elif kind == RST_STREAM and stream_id == self.stream_id and self.asked is not None:
            self.failed(f"RST_STREAM {int.from_bytes(payload, 'big')}")
            self.close()
        elif kind == GOAWAY and payload[4:8] != bytes(4):
            if self.asked is not None:
                self.failed(f"GOAWAY {payload[8:].decode(errors='replace')}")
            self.close()

    def message(self, message: bytes) -> None:
        self.answer(models.number(pb.ModelInferResponse.FromString(message).raw_output_contents[0]))

    def trailers(self, stream_id: int, fields: dict[str, str]) -> None:
        if stream_id != self.stream_id:
            return
        if fields.get("grpc-status") == "0":
            self.over()
        elif self.asked is not None:
            self.failed(f"gRPC {fields.get('grpc-status')} {fields.get('grpc-message', '')}")


class StreamClient(GrpcClient):
    """A client of ModelStreamInfer: it sends many requests on a stream, and then opens another stream."""

    transport_name = "gRPC stream"
    method = "ModelStreamInfer"

    def opened(self) -> None:
        super().opened()
        self._left = 0

    def ask(self, question: Question) -> None:
        start = b""
        if self._left == 0:
            self._left = MESSAGES_A_STREAM
            self.stream_id += 2
            self._message = b""
            start = self.headers()
        self._left -= 1
        last = self._left == 0
        message = length_prefixed(questions.as_grpc(question))
        self.write(start + frame(DATA, END_STREAM if last else 0, self.stream_id, message))

    def message(self, message: bytes) -> None:
        response = pb.ModelStreamInferResponse.FromString(message)
        if response.error_message:
            if self.asked is not None:
                self._end_of(self.failed, response.error_message)
            return
        if response.infer_response.raw_output_contents:
            self.answer(models.number(response.infer_response.raw_output_contents[0]))
        if self.asked is not None and len(self._answers) >= self.asked.responses and self._left:
            self.over()

    def _end_of(self, end: Callable[[str], None], reason: str) -> None:
        """Cancel the stream after an error. The next request uses a new stream, so that late responses cannot reach it."""
        self.write(frame(RST_STREAM, 0, self.stream_id, CANCEL.to_bytes(4, "big")) if self._left else b"")
        self._left = 0
        end(reason)

    def trailers(self, stream_id: int, fields: dict[str, str]) -> None:
        """Handle the end of a stream and of its last request. It is an error if the stream was to have more requests."""
        if stream_id == self.stream_id and self._left and self.asked is not None:
            self._left = 0
            self.failed(f"the stream ended: gRPC {fields.get('grpc-status')} {fields.get('grpc-message', '')}")
        else:
            super().trailers(stream_id, fields)


def _length(message: bytes) -> int:
    return int.from_bytes(message[1:5], "big")


# -- the stock clients -----------------------------------------------------------------------------------------------
async def stock_http(traffic: Traffic) -> None:
    await _stock(traffic, "stock HTTP", tritonclient.http, tritonclient.http.aio.InferenceServerClient, traffic.http)


async def stock_grpc(traffic: Traffic) -> None:
    await _stock(traffic, "stock gRPC", tritonclient.grpc, _grpc_client, traffic.grpc)


def _grpc_client(address: str) -> Any:
    """Return a client that retries a connection every 100 ms. With gRPC's default backoff, calls would fail for much longer."""
    backoff = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")]
    return tritonclient.grpc.aio.InferenceServerClient(address, channel_args=backoff)


async def _stock(traffic: Traffic, name: str, library: Any, connected: Any, address: str) -> None:
    asked = itertools.chain.from_iterable(zip(questions.mixed(), questions.sequences(), strict=True))
    async with connected(address) as client:
        while traffic.running:
            question, sent = next(asked), time.monotonic()
            try:
                answer = await asyncio.wait_for(_stock_infer(client, library, question), HANGS_S)
            except Exception as error:
                reason = str(error) or type(error).__name__
                traffic.failed(name, question, reason, sent)
                asked = itertools.chain.from_iterable(zip(questions.mixed(), questions.sequences(), strict=True))
                await asyncio.sleep(AFTER_A_FAILURE_S)
                continue
            wrong = question.wrong([answer], traffic.factors)
            if wrong:
                traffic.failed(name, question, wrong, sent)
            else:
                traffic.answered(name, question)


async def _stock_infer(client: Any, library: Any, question: Question) -> float:
    suffix = "" if question.model == models.SEQUENCE else "0"
    tensor = library.InferInput(f"INPUT{suffix}", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), question.value, np.float32))
    more = {}
    if question.sequence:
        more = {
            "sequence_id": question.sequence,
            "sequence_start": question.start,
            "sequence_end": question.end,
        }
    answer = await client.infer(question.model, [tensor], **more)
    return float(answer.as_numpy(f"OUTPUT{suffix}").flat[0])
