"""Hostile and silent remote servers: they take a bounded part of this server, and hold up no other remote."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from repository.config.traffic import Remote
from serving.core.errors import Code, ServingError
from serving.traffic.remotes import http_client
from tests.serving.traffic.remotes.asking import ask, config, remote_model
from tests.serving.traffic.remotes.services import Received, service

pytestmark = pytest.mark.asyncio

MODEL = config(
    'name: "m" max_batch_size: 1000 input { name: "x" data_type: TYPE_FP32 dims: 1 } '
    'output { name: "y" data_type: TYPE_FP32 dims: 1 }'
)
ROWS = {"request": {"x": "$x[row]"}, "response": {"y": "y"}}
ONE = {"x": np.array([[1.0]], np.float32)}

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@contextlib.asynccontextmanager
async def raw(respond: Answering) -> AsyncIterator[str]:
    """A server that reads the head of a request, and goes on as it likes; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await respond(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536),
        (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    ],
)
async def test_headers_without_an_end_are_given_up(tmp_path: Path, first: bytes, more: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(more)
            await writer.drain()

    async with raw(endless) as url:
        model = remote_model(tmp_path, Remote(url, "json", timeout_s=600, **ROWS), MODEL)
        with pytest.raises(ServingError, match="answers with too many headers"):
            await ask(model, ONE)
        await model.drain()


async def test_another_protocol_than_http_is_named_in_one_sentence(tmp_path: Path) -> None:
    async def switches(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
        await writer.drain()

    async with raw(switches) as url:
        model = remote_model(tmp_path, Remote(url, "json", **ROWS), MODEL)
        with pytest.raises(ServingError, match=f"{url} did not answer in HTTP/1.1"):
            await ask(model, ONE)
        await model.drain()


async def test_a_large_request_is_written_as_the_other_side_takes_it(tmp_path: Path) -> None:
    large = np.ones((1, 4 << 20), np.float32)
    wide = config(
        'name: "m" max_batch_size: 1 input { name: "x" data_type: TYPE_FP32 dims: -1 } '
        'output { name: "y" data_type: TYPE_FP32 dims: -1 }'
    )
    received: list[int] = []

    def respond(one: Received) -> Any:
        if one.path == "/v2":
            return {"extensions": ["binary_tensor_data"]}
        received.append(len(one.body))
        return {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}

    with service(respond) as other:
        model = remote_model(tmp_path, Remote(other.url, "v2"), wide)
        assert (await ask(model, {"x": large})).outputs["y"].tolist() == [[1.0]]
        assert received[0] > large.nbytes
        await model.drain()


async def test_the_rows_of_a_batch_have_no_more_connections_than_requests_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 4)
    with service(lambda received: {"y": [2 * received.json["x"][0]]}) as other:
        model = remote_model(tmp_path, Remote(other.url, "json", **ROWS), MODEL)
        given = np.arange(100, dtype=np.float32).reshape(100, 1)
        assert (await ask(model, {"x": given})).outputs["y"].tolist() == (2 * given).tolist()
        assert len(other.received) == 100
        assert len({one.client for one in other.received}) <= 4
        await model.drain()


async def test_a_name_server_that_does_not_answer_holds_up_no_other_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    look_up = socket.getaddrinfo

    def hanging(host: Any, *arguments: Any, **named: Any) -> Any:
        """A name server that knows localhost alone, and else keeps silent."""
        if host == "hangs.test":
            answered.wait()
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    hangs = remote_model(tmp_path, Remote("http://hangs.test:1", "json", **ROWS), MODEL)
    waiting = [asyncio.ensure_future(ask(hangs, ONE)) for _ in range(64)]
    with service(lambda received: {"y": [1.0]}) as other:
        url = other.url.replace("127.0.0.1", "localhost")
        model = remote_model(tmp_path, Remote(url, "json", **ROWS), MODEL)
        await ask(model, ONE)
        await model.drain()
    assert sum(thread.name == "look-up" for thread in threading.enumerate()) == 1
    answered.set()
    for failed in await asyncio.gather(*waiting, return_exceptions=True):
        assert "cannot be reached: Name or service not known" in str(failed)
    await hangs.drain()


async def test_the_first_of_a_names_addresses_need_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(lambda received: {"y": [1.0]}) as other:
        rows = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **named: rows)
        url = other.url.replace("127.0.0.1", "both.test")
        model = remote_model(tmp_path, Remote(url, "json", **ROWS), MODEL)
        await ask(model, ONE)
        await model.drain()


async def test_a_server_that_cannot_be_reached_is_not_tried_for_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "PAUSE_S", 600)
    tried = 0

    async def not_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tried
        tried += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(not_tls, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = remote_model(tmp_path, Remote(url, "json", **ROWS), MODEL)
        for _ in range(3):
            with pytest.raises(ServingError, match="cannot be reached: it does not speak TLS"):
                await ask(model, ONE)
        assert tried == 1
        await model.drain()


class _Says(grpc.GenericRpcHandler):
    """Answers every call with these bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._content)


async def test_a_malformed_grpc_message_is_one_sentence_and_nothing_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=(_Says(b"\xff" * 50),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        model = remote_model(tmp_path, Remote(f"http://127.0.0.1:{port}", "v2-grpc"), MODEL)
        with pytest.raises(ServingError, match="answered with something other than outputs of the V2 protocol"):
            await ask(model, ONE)
        await model.drain()
    finally:
        server.stop(None).wait()
    assert not caplog.records


async def test_nan_in_json_is_read_and_a_failed_first_question_is_repeated(tmp_path: Path) -> None:
    described: Any = iter([(401, {}, b"{}"), {"extensions": []}])

    def respond(received: Received) -> Any:
        if received.path == "/v2":
            return next(described)
        outputs = [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [float("nan")]}]
        return 200, {}, json.dumps({"outputs": outputs}).encode()

    with service(respond) as other:
        model = remote_model(tmp_path, Remote(other.url, "v2"), MODEL)
        with pytest.raises(ServingError, match="denies permission") as caught:
            await ask(model, ONE)
        assert caught.value.code is Code.UNAVAILABLE
        assert np.isnan((await ask(model, ONE)).outputs["y"].item())
        await model.drain()
