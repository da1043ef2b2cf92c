"""The V2 inference response: JSON followed by the binary data of tensors.

encode(response, header) -> (JSON, binary parts)      header: the header of the request

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_binary_data.md.
"""

import asyncio

from serving.core.errors import ServingError, unsupported
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.frontends.http1.exchange import JOIN_BELOW, Exchange
from serving.frontends.http1.message import Chunk, Reply
from serving.frontends.rest.infer_header import InferHeader
from serving.frontends.rest.json_output import LARGE_ARRAY
from serving.frontends.rest.response_outline import ResponseOutline
from serving.frontends.shared.compression import deflate
from serving.frontends.shared.worker_threads import in_thread

THREAD_FROM = 64 << 10  # bytes; larger answers are compressed on a worker thread
SMALL = 2048  # bytes; shorter answers are compressed with little memory


class InferResponder:
    """Answers the exchange when the response comes. header: the header of the request."""

    __slots__ = ("exchange", "header")
    flow: ResponseFlow | None = None  # back-pressure is needed only for several answers

    def __init__(self, exchange: Exchange, header: InferHeader) -> None:
        self.exchange = exchange
        self.header = header

    def on_response(self, response: Answer, final: bool) -> None:
        exchange = self.exchange
        if exchange.done:
            return
        header = self.header
        if isinstance(response, InferenceResponse) and final:
            if not header.all_binary and takes_long(response, header):
                exchange.task = asyncio.ensure_future(_answer_large(exchange, response, header))
                return
            try:
                json_part, parts = encode(response, header)
                _answer(exchange, json_part, parts)
            except Exception as error:
                exchange.fail(error)
        elif isinstance(response, ServingError):
            exchange.fail(response)
        else:
            refuse_decoupled(exchange)


def refuse_decoupled(exchange: Exchange) -> None:
    exchange.fail(unsupported("HTTP end point doesn't support models with decoupled transaction policy"))


async def _answer_large(exchange: Exchange, response: InferenceResponse, header: InferHeader) -> None:
    try:
        json_part, parts = await in_thread(encode, response, header)
        exchange.task = None
        _answer(exchange, json_part, parts)
    except Exception as error:
        exchange.fail(error)


def encode(response: InferenceResponse, header: InferHeader) -> tuple[bytes, list[Chunk]]:
    """Return the JSON, and the data of the binary outputs in order. Raises INVALID_ARG if JSON cannot carry an output."""
    usual = not response.in_shared_memory and not response.parameters
    if usual:
        outline = header.outlines.get(response.model_name)
        filled = outline and outline.fill(response)
        if filled:
            return filled
    outline = ResponseOutline(response, header.is_binary)
    if usual:
        header.outlines.remember(response.model_name, outline)
    filled = outline.fill(response)
    assert filled is not None
    return filled


def takes_long(response: InferenceResponse, header: InferHeader) -> bool:
    """Return whether `encode` writes too much JSON to run on the event loop's thread."""
    outputs = response.outputs
    for name in outputs:
        if outputs[name].size >= LARGE_ARRAY and not header.is_binary(name):
            return response.in_shared_memory is None or name not in response.in_shared_memory
    return False


def _answer(exchange: Exchange, json_part: bytes, parts: list[Chunk]) -> None:
    head = exchange.head
    size = len(json_part)
    for part in parts:
        size += len(part)
    pipeline = exchange.pipeline
    if head.accept or head.http_1_0 or pipeline.closing or pipeline.context.standing is not None:
        _answer_in_full(exchange, json_part, parts, size)
        return
    if parts:
        start = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(json_part), size)
        )
    else:
        start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size
    exchange.send([b"".join((start, json_part, *parts))] if size < JOIN_BELOW else [start, json_part, *parts])


def _answer_in_full(exchange: Exchange, json_part: bytes, parts: list[Chunk], size: int) -> None:
    """Answer with the headers that the fast path omits: Connection, Content-Encoding and the listener's headers."""
    headers = [("Inference-Header-Content-Length", str(len(json_part)))] if parts else []
    kind = "application/octet-stream" if parts else "application/json"
    body: list[Chunk] = [json_part, *parts]
    if not exchange.head.accept:
        exchange.reply(Reply(200, body, kind, headers))
        return
    headers.append(("Content-Encoding", exchange.head.accept))
    if size < THREAD_FROM:
        exchange.reply(Reply(200, (_compress(body, exchange.head.accept, size),), kind, headers))
    else:
        exchange.sending()
        exchange.task = asyncio.ensure_future(_compress_in_thread(exchange, body, size, kind, headers))


async def _compress_in_thread(
    exchange: Exchange, body: list[Chunk], size: int, kind: str, headers: list[tuple[str, str]]
) -> None:
    try:
        packed = await in_thread(_compress, body, exchange.head.accept, size)
        exchange.reply(Reply(200, (packed,), kind, headers))
    except Exception as error:
        exchange.fail(error)


def _compress(body: list[Chunk], encoding: str, size: int) -> bytes:
    return deflate(body, encoding, level=1, small=size < SMALL)
