"""The V2 inference response: JSON with Triton's binary tensor extension, as the answer to an exchange.

encode(response, plan) -> (JSON, binary parts)

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_binary_data.md.
"""

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.core.datatypes import DATATYPES, Datatype, datatype_of, serialize_bytes
from serving.core.errors import ServingError, unsupported
from serving.core.in_flight import Responder
from serving.core.response import Answer, InferenceResponse
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Chunk, Reply
from serving.frontends.rest.infer_request import Plan
from serving.frontends.rest.json_output import LARGE_ARRAY, array_to_json, dump_json
from serving.frontends.shared.compression import deflate
from serving.frontends.shared.worker_threads import in_thread

VIEW_FROM = 64 << 10  # bytes; larger outputs are sent from the array's own memory
THREAD_FROM = 64 << 10  # bytes; larger answers are compressed in a thread
SMALL = 2048  # bytes; shorter answers are compressed with little memory


class InferResponder(Responder):
    """Answers the exchange when the response comes."""

    __slots__ = ("exchange", "plan")

    def __init__(self, exchange: Exchange, plan: Plan) -> None:
        self.exchange = exchange
        self.plan = plan

    def on_response(self, response: Answer, final: bool) -> None:
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
            refuse_decoupled(exchange)


def refuse_decoupled(exchange: Exchange) -> None:
    exchange.fail(unsupported("HTTP end point doesn't support models with decoupled transaction policy"))


async def _answer_large(exchange: Exchange, response: InferenceResponse, plan: Plan) -> None:
    try:
        header, parts = await in_thread(encode, response, plan)
        exchange.task = None
        _answer(exchange, header, parts)
    except Exception as error:
        exchange.fail(error)


def encode(response: InferenceResponse, plan: Plan) -> tuple[bytes, list[Chunk]]:
    """The JSON, and the binary data of the outputs asked for in that form, in order."""
    outputs: list[dict[str, Any]] = []
    parts: list[Chunk] = []
    for name, array in response.outputs.items():
        row = datatype_of(array)
        output: dict[str, Any] = {"name": name, "datatype": row.name, "shape": array.shape}
        if response.in_shared_memory is not None and name in response.in_shared_memory:
            pass  # without parameters: where there are any, NVIDIA's C++ client wants a binary_data_size among them
        elif plan.binary.get(name, plan.binary_default):
            part = raw_bytes(array, row)
            output["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        else:
            output["data"] = array_to_json(name, row, array)
        outputs.append(output)
    value: dict[str, Any] = {"id": response.id} if response.id else {}
    value["model_name"] = response.model_name
    value["model_version"] = str(response.model_version)
    if response.parameters:
        value["parameters"] = response.parameters
    value["outputs"] = outputs
    return dump_json(value), parts


def takes_long(response: InferenceResponse, plan: Plan) -> bool:
    """Whether `encode` writes so much JSON that it should not run on the event loop's thread."""
    for name, array in response.outputs.items():
        if array.size >= LARGE_ARRAY and not plan.binary.get(name, plan.binary_default):
            return response.in_shared_memory is None or name not in response.in_shared_memory
    return False


def raw_bytes(array: NDArray[Any], row: Datatype) -> Chunk:
    """Little-endian, row-major. A large contiguous array is not copied."""
    if row is DATATYPES["BYTES"]:
        return serialize_bytes(array)
    if array.nbytes < VIEW_FROM or not array.flags.c_contiguous:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data


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
