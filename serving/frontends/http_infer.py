"""POST .../infer: decode, hand over to the server, answer when it calls back."""

import asyncio

from serving.errors import ServingError, invalid, unsupported
from serving.frontends.forwarded_headers import forward_headers
from serving.frontends.http_body import compress
from serving.frontends.http_codec import Plan, decode, decode_raw, encode
from serving.frontends.http_exchange import Exchange
from serving.frontends.http_message import Chunk, Reply
from serving.request import InferenceResponse
from serving.server import InferenceServer

THREAD_FROM = 64 << 10  # bytes; larger answers are compressed in a thread


def infer(server: InferenceServer, exchange: Exchange) -> None:
    received = exchange.received() if server.tracing else None
    params = exchange.head.params
    model = params["model"]
    version = params.get("version", "")
    header_length = exchange.head.header_length
    plan: Plan

    def on_response(response: InferenceResponse | ServingError | None, final: bool) -> None:
        if exchange.done:
            return
        if isinstance(response, InferenceResponse) and final:
            try:
                _answer(exchange, *encode(response, plan))
            except Exception as error:
                exchange.fail(error)
        elif isinstance(response, ServingError):
            exchange.fail(response)
        else:
            _refuse_decoupled(exchange)

    if header_length == 0:
        request, plan = decode_raw(server.model_config(model, version), exchange.binary, version, on_response)
    else:
        if header_length is not None and header_length > len(exchange.body):
            length = len(exchange.body)
            raise invalid(f"inference header size should be in range (0, {length}), got: {header_length}")
        request, plan = decode(exchange.body, exchange.binary, model, version, on_response, server.shared_memory)
    exchange.body = exchange.binary = b""  # the tensors hold what they need
    exchange.requests = (request,)
    forwarded = exchange.connection.listener.forwarded
    if forwarded is not None:
        forward_headers(forwarded, exchange.head.as_sent(), request)
    try:
        server.infer(request, "http", exchange.connection.transport, exchange.head.headers, received)
    finally:
        exchange.traced = request.trace is not None
    if request.decoupled:
        _refuse_decoupled(exchange)


def _refuse_decoupled(exchange: Exchange) -> None:
    exchange.fail(unsupported("HTTP end point doesn't support models with decoupled transaction policy"))


def _answer(exchange: Exchange, header: bytes, parts: list[Chunk]) -> None:
    head = exchange.head
    size = len(header) + sum(map(len, parts))
    if head.accept or head.http_1_0 or exchange.connection.closing:
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
        packed = await asyncio.to_thread(compress, body, exchange.head.accept, size)
        exchange.reply(Reply(200, (packed,), kind, headers))
    except Exception as error:
        exchange.fail(error)
