"""Parsing takes work in proportion to the length of a message: four times the length, four times the work."""

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import hpack
import pytest
from tritonclient.grpc import service_pb2 as pb

from repository.config.model_config import parse, parse_json
from serving.cli.option_values import header_pattern
from serving.core.errors import ServingError, invalid
from serving.extensions.shared_memory import SharedMemory
from serving.frontends.grpc.call_headers import error_response, parse_head
from serving.frontends.grpc.message_stream import MessageReader
from serving.frontends.grpc.request_decoder import RequestDecoder
from serving.frontends.grpc.status import status_of
from serving.frontends.http1.body import ChunkedBody
from serving.frontends.http1.connection import Connection as HttpConnection
from serving.frontends.http1.connection import Connections
from serving.frontends.http1.context import Context
from serving.frontends.http1.message import parse_head as parse_http_head
from serving.frontends.http1.routes import RouteTable
from serving.frontends.http2.connection import Connection as Http2Connection
from serving.frontends.http2.frame_reader import make_scratch
from serving.frontends.http2.headers import HeaderDecoder
from serving.frontends.rest import handlers as http_handlers
from serving.frontends.rest.infer_request import decode
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.compression import Inflater
from serving.resources.request_memory import RequestMemory
from tests.serving.frontends.http2 import http2_peer as h2
from tests.support.work_meter import grows_evenly, work_of

# Where the kernel counts no instructions, calls of functions are counted; nobody sees those that compiled code makes.
pytestmark = pytest.mark.interpreted

Work = Callable[[], Any]
OUTPUT = '{"name":"X"}'
OPEN_INPUT = '{"name":"X","datatype":"FP32","shape":[1],"data":[1]'


def infer(body: str | bytes) -> Work:
    content = body.encode() if isinstance(body, str) else body
    return lambda: decode(memoryview(content), b"", "m", "", SharedMemory(False))


def members(n: int) -> str:
    return ",".join(f'"key{number}":{number}' for number in range(n))


def tensors(n: int, text: str = OPEN_INPUT + "}") -> str:
    return ",".join(text.replace('"X"', f'"X{number}"') for number in range(n))


JSON: dict[str, tuple[int, Callable[[int], Work]]] = {
    "members of the request": (4000, lambda n: infer(f'{{{members(n)},"inputs":[]}}')),
    "members of an input": (4000, lambda n: infer(f'{{"inputs":[{OPEN_INPUT},{members(n)}}}]}}')),
    "members of an input before its own": (4000, lambda n: infer(f'{{"inputs":[{{{members(n)},{OPEN_INPUT[1:]}}}]}}')),
    "members of an output": (4000, lambda n: infer(f'{{"inputs":[],"outputs":[{{"name":"Y",{members(n)}}}]}}')),
    "parameters": (1000, lambda n: infer(f'{{"inputs":[],"parameters":{{{members(n)}}}}}')),
    "too many parameters": (5000, lambda n: infer(f'{{"inputs":[],"parameters":{{{members(n)}}}}}')),
    "parameters in a parameter": (4000, lambda n: infer(f'{{"inputs":[],"parameters":{{"a":{{{members(n)}}}}}}}')),
    "objects in parameters": (4000, lambda n: infer('{"inputs":[],"parameters":{"a":[' + ",".join(["{}"] * n) + "]}}")),
    "inputs": (250, lambda n: infer(f'{{"inputs":[{tensors(n)}]}}')),
    "inputs with many members": (
        60,
        lambda n: infer(f'{{"inputs":[{tensors(n, OPEN_INPUT + "," + members(60) + "}")}]}}'),
    ),
    "outputs": (1000, lambda n: infer(f'{{"inputs":[],"outputs":[{tensors(n, OUTPUT)}]}}')),
    "dimensions": (
        4000,
        lambda n: infer('{"inputs":[{"name":"X","datatype":"FP32","shape":[' + "9," * n + '9],"data":[1]}]}'),
    ),
    "elements": (
        20_000,
        lambda n: infer('{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[' + "1," * n + "1]}]}"),
    ),
    "texts": (
        5000,
        lambda n: infer('{"inputs":[{"name":"X","datatype":"BYTES","shape":[1],"data":[' + '"a",' * n + '"a"]}]}'),
    ),
    "rows": (
        3000,
        lambda n: infer('{"inputs":[{"name":"X","datatype":"BYTES","shape":[1],"data":[' + '["a"],' * n + '["a"]]}]}'),
    ),
    "a long text among numbers": (
        2000,
        lambda n: infer(
            '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[' + "1," * n + f'"{"a" * n}"]}}]}}'
        ),
    ),
    "NaN": (
        5000,
        lambda n: infer('{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[' + "NaN," * n + "NaN]}]}"),
    ),
    "nesting": (
        200,
        lambda n: infer('{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":' + "[" * n + "]" * n + "}]}"),
    ),
    'arrays under "data"': (500, lambda n: infer("{" + ",".join(['"data":[1]'] * n) + "}")),
    "far too many arrays": (5000, lambda n: infer("{" + ",".join(['"data":[1]'] * n) + "}")),
}


def of_message(make: Callable[[pb.ModelInferRequest, int], None]) -> Callable[[int], Work]:
    """Decoding a ModelInferRequest that `make` has filled."""

    def work(n: int) -> Work:
        message = pb.ModelInferRequest(model_name="m")
        make(message, n)
        return of_bytes(message.SerializeToString())

    return work


def of_bytes(content: bytes) -> Work:
    decoder = RequestDecoder(SharedMemory(False))
    return lambda: decoder.decode(memoryview(content), 0)


def one_input(message: pb.ModelInferRequest, **fields: Any) -> Any:
    return message.inputs.add(name="X", datatype="FP32", shape=fields.pop("shape", [1]), **fields)


def with_parameters(message: pb.ModelInferRequest, n: int) -> None:
    for number in range(n):
        message.parameters[f"key{number}"].int64_param = number


def with_parameters_of_an_input(message: pb.ModelInferRequest, n: int) -> None:
    tensor = one_input(message)
    for number in range(n):
        tensor.parameters[f"key{number}"].int64_param = number


def messages_in_pieces(n: int) -> Work:
    """Small messages, and one that comes byte by byte."""
    small = h2.framed(b"") * n

    def read() -> None:
        messages = MessageReader(1 << 30, "identity")
        messages.add(small)
        for byte in h2.framed(bytes(n)):
            messages.add(bytes([byte]))
            messages.next()

    return read


PROTOBUF: dict[str, tuple[int, Callable[[int], Work]]] = {
    "raw tensors": (4000, of_message(lambda message, n: message.raw_input_contents.extend([b""] * n))),
    "far too many raw tensors": (17_000, of_message(lambda message, n: message.raw_input_contents.extend([b""] * n))),
    "inputs": (
        1000,
        of_message(lambda message, n: message.inputs.extend([pb.ModelInferRequest.InferInputTensor()] * n)),
    ),
    "far too many inputs": (
        17_000,
        of_message(lambda message, n: message.inputs.extend([pb.ModelInferRequest.InferInputTensor()] * n)),
    ),
    "dimensions": (4000, of_message(lambda message, n: one_input(message, shape=[1 << 62] * n) and None)),
    "elements": (
        5000,
        of_message(lambda message, n: one_input(message).contents.fp32_contents.extend([1.0] * n)),
    ),
    "parameters": (1000, of_message(with_parameters)),
    "parameters of an input": (1000, of_message(with_parameters_of_an_input)),
    "unknown fields": (4000, lambda n: of_bytes(b"\xa8\x1f\x01" * n)),
    "messages": (2000, messages_in_pieces),
}

PATTERNS = [r"^(my-.*)+x", "(a+)+$", "(a|aa)+b", ".*.*.*.*x", r"^(\w+\s?)*$"]


def searching(expression: str) -> Callable[[str], object]:
    pattern = header_pattern(expression)
    assert pattern is not None
    return pattern.search


def inflating(n: int) -> Work:
    content = gzip.compress(bytes(n << 10))

    def read() -> None:
        inflater = Inflater(content, "gzip")
        while not inflater.done:
            inflater.step(1 << 14)
        assert inflater.complete

    return read


def inflating_what_does_not_shrink(n: int) -> Work:
    """The output comes in many small steps, each of which leaves much of the input."""
    packer = zlib.compressobj(0)
    content = packer.compress(bytes(n << 10)) + packer.flush()

    def read() -> None:
        inflater = Inflater(content, "deflate")
        while not inflater.done:
            inflater.step(1 << 12)

    return read


def chunked(chunk: bytes, step: int = 1) -> Callable[[int], Work]:
    def work(n: int) -> Work:
        view = memoryview(chunk * n + b"0\r\n\r\n")

        def read() -> None:
            body = ChunkedBody(1 << 30)
            for start in range(0, len(view), step):
                body.feed(view[start : start + step])

        return read

    return work


def header_block(n: int, name: bytes = b"a") -> Work:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), *[(name, b"1" * 10)] * n]
    block = hpack.Encoder().encode(fields)
    return lambda: HeaderDecoder(parse_head).decode(block)


OTHERS: dict[str, tuple[int, Callable[[int], Work]]] = {
    "JSON objects": (2000, lambda n: lambda: json.loads(f"{{{members(n)}}}")),
    "text format": (500, lambda n: lambda: parse('name: "m" ' + 'input { name: "X" dims: 1 } ' * n)),
    "text format, parameters": (
        300,
        lambda n: lambda: parse('parameters { key: "a" value { string_value: "b" } } ' * n),
    ),
    "text format, a long text": (500, lambda n: lambda: parse("name: " + '"a" ' * n)),
    "text format, nesting": (500, lambda n: lambda: parse("input { " * n)),
    "text format, comments": (1000, lambda n: lambda: parse("# a\n" * n)),
    "JSON of a configuration": (
        500,
        lambda n: lambda: parse_json('{"input":[' + ",".join(['{"name":"X"}'] * n) + "]}"),
    ),
    "JSON of a configuration, nesting": (500, lambda n: lambda: parse_json('{"a":' * n + "1" + "}" * n)),
    "gzip": (2000, inflating),
    "deflate that does not shrink": (2000, inflating_what_does_not_shrink),
    "chunks": (1000, chunked(b"1\r\na\r\n")),
    "chunks at once": (4000, chunked(b"1\r\na\r\n", 1 << 20)),
    "chunk extensions": (200, chunked(b"1;" + b"a" * 200 + b"\r\na\r\n")),
    "a header many times": (400, header_block),
    "base64": (100_000, lambda n: lambda: http_handlers._base64("file:1/x", "QUJD" * n)),
    "Accept-Encoding": (
        500,
        lambda n: lambda: parse_http_head(b"GET / HTTP/1.1\r\nAccept-Encoding:" + b"a," * n + b"a\r\n\r\n"),
    ),
    "HTTP headers": (400, lambda n: lambda: parse_http_head(b"GET / HTTP/1.1\r\n" + b"a: 1\r\n" * n + b"\r\n")),
    "a path": (2000, lambda n: lambda: parse_http_head(b"GET /" + b"%41" * n + b" HTTP/1.1\r\n\r\n")),
    "a status message": (20_000, lambda n: lambda: refused(invalid("é" * n))),
    **{
        f"header names for {one}": (2000, lambda n, one=one: partial(searching(one), "a" * n + "!")) for one in PATTERNS
    },
}


def refused(error: ServingError) -> bytes:
    return error_response(status_of(error), error.message)


@pytest.mark.parametrize("case", JSON)
def test_json_of_an_inference_request(case: str) -> None:
    n, work = JSON[case]
    assert grows_evenly(work, n)


@pytest.mark.parametrize("case", PROTOBUF)
def test_protobuf_of_an_inference_request(case: str) -> None:
    n, work = PROTOBUF[case]
    assert grows_evenly(work, n)


@pytest.mark.parametrize("case", OTHERS)
def test_what_else_is_read(case: str) -> None:
    n, work = OTHERS[case]
    assert grows_evenly(work, n)


# -- what comes piece by piece -----------------------------------------------------------------------------------------
def received(make: Callable[[], Any], content: bytes, step: int = 1) -> Callable[[], Any]:
    """A connection over a real socket gets the content in pieces of `step` bytes."""

    async def main() -> int:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        _, connection = await asyncio.get_running_loop().connect_accepted_socket(make, ours)

        def read() -> None:
            for start in range(0, len(content), step):
                piece = content[start : start + step]
                connection.get_buffer(-1)[: len(piece)] = piece
                connection.buffer_updated(len(piece))

        work = work_of(read)
        connection.transport.abort()
        await asyncio.sleep(0)
        theirs.close()
        return work

    return lambda: asyncio.run(main())


def http(content: bytes, step: int = 1) -> Callable[[], Any]:
    def make() -> HttpConnection:
        context = Context(Authoriser((), "", None), RequestMemory())
        return HttpConnection(context, RouteTable((), None, 1 << 20), Connections())

    return received(make, content, step)


def http2(content: bytes, step: int = 1) -> Callable[[], Any]:
    def make() -> Http2Connection[Any]:
        return Http2Connection(lambda fields: fields, lambda *_: None, set(), make_scratch())  # type: ignore[arg-type]

    return received(make, h2.PREFACE + h2.settings() + content, step)


PIECES: dict[str, tuple[int, Callable[[int], Callable[[], Any]]]] = {
    "an HTTP head": (3000, lambda n: http(b"GET / HTTP/1.1\r\nA: " + b"a" * n)),
    "an HTTP body": (3000, lambda n: http(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"a" * n)),
    "pipelined requests": (500, lambda n: http(b"GET / HTTP/1.1\r\n\r\n" * n, 1 << 17)),
    "an HTTP/2 header block": (3000, lambda n: http2(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, bytes(n)))),
    "padded data": (3000, lambda n: http2(h2.frame(h2.DATA, h2.PADDED, 1, bytes(n)))),
    "settings": (600, lambda n: http2(h2.frame(h2.SETTINGS, 0, 0, b"\0\4\0\0\1\0" * n))),
}


@pytest.mark.parametrize("case", PIECES)
def test_what_comes_piece_by_piece(case: str) -> None:
    n, work = PIECES[case]
    work(n)()
    few, many = work(n)(), work(4 * n)()
    assert few > 0
    assert many < 7 * few
