"""POST .../infer: decode, hand over to the server, answer when it calls back."""

import asyncio

from serving.core.errors import ServingError, invalid, unsupported
from serving.core.request import InferenceRequest, InferenceResponse
from serving.frontends.http1.body import compress
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Chunk, Reply
from serving.frontends.rest.codec import Plan, decode, decode_raw, encode, takes_long
from serving.frontends.rest.json_pieces import LARGE
from serving.frontends.shared.forwarded_headers import forward_headers
from serving.frontends.shared.worker_threads import in_thread
from serving.server import InferenceServer

THREAD_FROM = 64 << 10  # bytes; larger answers are compressed in a thread


class _Receiver:
    """Answers the exchange when the response comes."""

    __slots__ = ("exchange", "plan")
    plan: Plan  # set when the request is decoded

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def __call__(self, response: InferenceResponse | ServingError | None, final: bool) -> None:
        exchange = self.exchange
        if exchange.done:
            return
        if isinstance(response, InferenceResponse) and final:
            if takes_long(response, self.plan):
                exchange.task = asyncio.ensure_future(_answer_large(exchange, response, self.plan))
                return
            try:
                _answer(exchange, *encode(response, self.plan))
            except Exception as error:
                exchange.fail(error)
        elif isinstance(response, ServingError):
            exchange.fail(response)
        else:
            _refuse_decoupled(exchange)


def infer(server: InferenceServer, exchange: Exchange) -> None:
    received = exchange.received() if server.tracing else None
    if len(exchange.body) >= LARGE:
        exchange.task = asyncio.ensure_future(_infer_large(server, exchange, received))
    else:
        _submit(server, exchange, _decode(server, exchange), received)


async def _infer_large(server: InferenceServer, exchange: Exchange, received: tuple[int, int] | None) -> None:
    """JSON that would hold up the loop is parsed, in pieces, on another thread."""
    try:
        request = await in_thread(_decode, server, exchange)
        exchange.task = None
        _submit(server, exchange, request, received)
    except Exception as error:
        exchange.fail(error)


async def _answer_large(exchange: Exchange, response: InferenceResponse, plan: Plan) -> None:
    try:
        header, parts = await in_thread(encode, response, plan)
        exchange.task = None
        _answer(exchange, header, parts)
    except Exception as error:
        exchange.fail(error)


def _decode(server: InferenceServer, exchange: Exchange) -> InferenceRequest:
    params = exchange.route.params
    model = params["model"]
    version = params.get("version", "")
    header_length = exchange.head.header_length
    receiver = _Receiver(exchange)
    if header_length == 0:
        config = server.model_config(model, version)
        request, receiver.plan = decode_raw(config, exchange.binary, version, receiver)
    else:
        if header_length is not None and header_length > len(exchange.body):
            length = len(exchange.body)
            raise invalid(f"inference header size should be in range (0, {length}), got: {header_length}")
        request, receiver.plan = decode(exchange.body, exchange.binary, model, version, receiver, server.shared_memory)
    return request


def _submit(
    server: InferenceServer, exchange: Exchange, request: InferenceRequest, received: tuple[int, int] | None
) -> None:
    exchange.body = exchange.binary = b""  # the tensors hold what they need
    exchange.requests = (request,)
    forwarded = exchange.pipeline.context.forwarded
    if forwarded is not None:
        forward_headers(forwarded, exchange.head.as_sent(), request)
    try:
        server.infer(request, "http", exchange.pipeline.transport, exchange.head.headers, received)
    finally:
        exchange.traced = request.trace is not None
    if request.decoupled:
        _refuse_decoupled(exchange)


def _refuse_decoupled(exchange: Exchange) -> None:
    exchange.fail(unsupported("HTTP end point doesn't support models with decoupled transaction policy"))


def _answer(exchange: Exchange, header: bytes, parts: list[Chunk]) -> None:
    head = exchange.head
    size = len(header) + sum(map(len, parts))
    if head.accept or head.http_1_0 or exchange.pipeline.closing:
        _answer_in_full(exchange, header, parts, size)
    elif parts:
        start = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(header), size)
        )
        exchange.send([start, header, *parts])
    else:
        start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size
        exchange.send([start, header])


def _answer_in_full(exchange: Exchange, header: bytes, parts: list[Chunk], size: int) -> None:
    """With the headers that the fast path leaves out: Connection, Content-Encoding."""
    headers = [("Inference-Header-Content-Length", str(len(header)))] if parts else []
    kind = "application/octet-stream" if parts else "application/json"
    body: list[Chunk] = [header, *parts]
    if not exchange.head.accept:
        exchange.reply(Reply(200, body, kind, headers))
        return
    headers.append(("Content-Encoding", exchange.head.accept))
    if size < THREAD_FROM:
        exchange.reply(Reply(200, (compress(body, exchange.head.accept, size),), kind, headers))
    else:
        exchange.sending()
        exchange.task = asyncio.ensure_future(_compress_in_thread(exchange, body, size, kind, headers))


async def _compress_in_thread(
    exchange: Exchange, body: list[Chunk], size: int, kind: str, headers: list[tuple[str, str]]
) -> None:
    try:
        packed = await in_thread(compress, body, exchange.head.accept, size)
        exchange.reply(Reply(200, (packed,), kind, headers))
    except Exception as error:
        exchange.fail(error)
