"""Slow, silent and greedy clients cost a bounded amount of time and memory, and draining answers all requests."""

import asyncio
import contextlib
import gc
import json
from pathlib import Path

import numpy as np
import pytest
import uvloop

from serving.frontends.http1.context import Limits
from tests.serving.frontends.http_in_process import connection, http_frontend, read_answer
from tests.serving.frontends.raw_http import RawClient, build, infer_body, tensor
from tests.support.model_factory import onnx_identity, onnx_slow
from tests.support.serving_process import PATIENCE_S, ServerProcess

pytestmark = pytest.mark.long
INFER = "/v2/models/identity/infer"
SHORT = Limits(head_s=1, body_s=1, idle_s=2, stalled_s=1, linger_s=1, body_bytes_per_s=1 << 20)
SMALL = build("POST", INFER, infer_body(tensor([1.0])))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits")
    onnx_identity(folder)
    onnx_slow(folder, iterations=1000)
    return folder


def large_request(elements: int) -> bytes:
    described = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": [1, elements],
        "parameters": {"binary_data_size": 4 * elements},
    }
    header = infer_body(described, parameters={"binary_data_output": True})
    data = np.zeros(elements, np.float32).tobytes()
    return build("POST", INFER, header + data, Inference_Header_Content_Length=str(len(header)))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nHost:", 408),
        (SMALL[:-3], 408),
        (b"POST /v2/models/identity/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 408),
        (b"", None),
        (SMALL, 200),
    ],
)
def test_a_client_that_sends_no_more_is_closed_in_time(repository: Path, sent: bytes, status: int | None) -> None:
    async def main() -> None:
        async with http_frontend(repository, SHORT) as (frontend, _), connection(frontend) as (reader, writer):
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                if status is not None:
                    assert (await read_answer(reader))[0] == status
                assert await reader.read() == b""

    uvloop.run(main())


def test_a_client_that_does_not_read_is_closed_and_others_are_served(repository: Path) -> None:
    async def send_for_ever(writer: asyncio.StreamWriter) -> None:
        for _ in range(200):
            writer.write(large_request(1 << 20))
            await writer.drain()

    async def main() -> None:
        async with http_frontend(repository, Limits(stalled_s=1)) as (frontend, _):
            async with connection(frontend, limit=1024) as (_, writer), asyncio.timeout(PATIENCE_S):
                with pytest.raises(ConnectionError):
                    await send_for_ever(writer)
            async with connection(frontend) as (reader, writer):
                writer.write(SMALL)
                assert (await read_answer(reader))[0] == 200

    uvloop.run(main())


def test_a_refusal_waits_for_the_answers_before_it(repository: Path) -> None:
    async def main() -> None:
        limits = Limits(linger_s=1)
        async with http_frontend(repository, limits) as (frontend, _), connection(frontend) as (reader, writer):
            slow = build("POST", "/v2/models/slow/infer", infer_body(tensor([1.0])))
            writer.write(slow * 10 + b"POST /v2 HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n")
            statuses = [(await read_answer(reader))[0] for _ in range(11)]
            assert statuses == [200] * 10 + [400]
            assert await reader.read() == b""

    uvloop.run(main())


def test_a_length_that_is_only_claimed_costs_no_memory(repository: Path) -> None:
    with ServerProcess(repository, "--http-max-input-size=1000000000") as server, contextlib.ExitStack() as clients:
        before = server.memory()
        for _ in range(20):
            client = clients.enter_context(RawClient(server.http))
            client.send(f"POST {INFER} HTTP/1.1\r\nContent-Length: 900000000\r\n\r\n".encode() + b"x" * 1000)
        assert server.get("/v2/health/live")[0] == 200
        assert server.memory() - before < 30 << 20


def test_a_slow_reader_gets_a_large_answer_whole(repository: Path) -> None:
    async def main() -> None:
        async with (
            http_frontend(repository, http_max_input_size=64 << 20) as (frontend, _),
            connection(frontend, limit=4096) as (reader, writer),
        ):
            writer.write(large_request(4 << 20) + build("GET", "/v2"))
            status, headers, body = await read_answer(reader)
            assert (status, len(body)) == (200, int(headers["inference-header-content-length"]) + (16 << 20))
            assert json.loads((await read_answer(reader))[2])["name"] == "slipway"

    uvloop.run(main())


def test_draining_answers_all_requests_and_one_more_of_an_idle_connection(repository: Path) -> None:
    async def main() -> None:
        async with (
            http_frontend(repository) as (frontend, server),
            connection(frontend) as (idle, idle_writer),
            connection(frontend) as (silent, _),
            connection(frontend) as (reader, writer),
            connection(frontend) as (half_reader, half_writer),
        ):
            half_writer.write(SMALL[:-3])
            writer.write(build("POST", "/v2/models/slow/infer", infer_body(tensor([1.0]))))
            async with asyncio.timeout(PATIENCE_S):
                while not any(model.status.in_flight for model in server.statistics()):
                    await asyncio.sleep(0.001)
                draining = asyncio.ensure_future(frontend.drain())
                await asyncio.sleep(0)  # so it has begun: idle connections have `leaving_s` seconds left
                idle_writer.write(build("GET", "/v2/health/live"))
                with contextlib.suppress(ConnectionRefusedError):
                    while True:
                        (await asyncio.open_connection(*frontend.address))[1].close()
                status, headers, _ = await read_answer(idle)
                assert (status, headers["connection"]) == (200, "close")
                assert await idle.read() == b""
                assert await silent.read() == b"", "a client that asks for nothing is not waited for long"
                assert (await read_answer(reader))[0] == 200
                assert await reader.read() == b""
                half_writer.write(SMALL[-3:])
                assert (await read_answer(half_reader))[1]["connection"] == "close"
                await draining

    uvloop.run(main())


def test_an_old_connection_ends_with_notice(repository: Path) -> None:
    async def main() -> None:
        limits = Limits(max_age_s=1.5, leaving_s=1)
        async with (
            http_frontend(repository, limits) as (frontend, _),
            connection(frontend) as (busy, busy_writer),
            connection(frontend) as (silent, _),
            connection(frontend) as (half, half_writer),
        ):
            half_writer.write(SMALL[:-3])
            async with asyncio.timeout(PATIENCE_S):
                answered, last = 0, ""
                while last != "close":
                    busy_writer.write(SMALL)
                    status, headers, _ = await read_answer(busy)
                    assert status == 200
                    answered, last = answered + 1, headers.get("connection", "")
                assert answered > 1
                assert await busy.read() == b""
                assert await silent.read() == b""
                half_writer.write(SMALL[-3:])
                assert (await read_answer(half))[1]["connection"] == "close"

    uvloop.run(main())


def test_a_request_leaves_no_reference_cycles(repository: Path) -> None:
    async def main() -> None:
        async with http_frontend(repository) as (frontend, _), connection(frontend) as (reader, writer):

            async def ask(times: int, request: bytes) -> None:
                for _ in range(times):
                    writer.write(request)
                    await read_answer(reader)

            refused = build("POST", INFER, infer_body(tensor([1.0] * 3, [1, 2])))
            for request in (SMALL, large_request(100_000), refused):
                await ask(3, request)
                gc.collect()
                gc.disable()
                try:
                    await ask(50, request)
                    assert gc.collect() < 50
                finally:
                    gc.enable()

    uvloop.run(main())
