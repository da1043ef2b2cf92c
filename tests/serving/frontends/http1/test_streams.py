"""Server-sent events to a client that reads slowly, or goes: the model waits, or stops."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
import uvloop

from serving.core.response_flow import ResponseFlow
from serving.frontends.http1 import event_stream
from serving.frontends.http1.context import Limits
from tests.serving.frontends.http_in_process import connection, http_frontend
from tests.serving.frontends.raw_http import build
from tests.serving.streaming_backend import StreamingBackend, streaming_model
from tests.support.serving_process import PATIENCE_S

EVENTS = 200
SIZE = 32 << 10
AHEAD = 1 << 20  # bytes of responses; each becomes about four times as many bytes of JSON
REQUEST = build("POST", "/v2/models/streaming/generate_stream", json.dumps({"IN": EVENTS, "size": SIZE}).encode())


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[ResponseFlow]:
    """The flows of the streams that the test opens; each lets its model run AHEAD bytes ahead."""
    made: list[ResponseFlow] = []

    def make() -> ResponseFlow:
        made.append(ResponseFlow(AHEAD))
        return made[-1]

    monkeypatch.setattr(event_stream, "ResponseFlow", make)
    monkeypatch.setattr(StreamingBackend, "sent", 0)
    monkeypatch.setattr(StreamingBackend, "cancelled", 0)
    return made


async def until_it_waits(flow: ResponseFlow) -> None:
    while flow._ahead < AHEAD:
        await asyncio.sleep(0.01)


def test_a_model_waits_for_a_client_that_reads_slowly_and_nothing_is_lost(
    tmp_path: Path, flows: list[ResponseFlow]
) -> None:
    streaming_model(tmp_path)

    async def main() -> None:
        async with http_frontend(tmp_path) as (frontend, _), connection(frontend, limit=4096) as (reader, writer):
            writer.write(REQUEST)
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"\r\n\r\n")
                await until_it_waits(flows[0])
                assert StreamingBackend.sent < EVENTS
                body = b""
                while not body.endswith(b"\r\n0\r\n\r\n"):
                    body += await reader.read(1 << 20)
            assert body.count(b"data: ") == EVENTS

    uvloop.run(main())


def test_a_client_that_goes_while_the_model_waits_ends_it(tmp_path: Path, flows: list[ResponseFlow]) -> None:
    streaming_model(tmp_path)

    async def main() -> None:
        async with http_frontend(tmp_path) as (frontend, _), asyncio.timeout(PATIENCE_S):
            async with connection(frontend, limit=4096) as (_, writer):
                writer.write(REQUEST)
                while not flows:
                    await asyncio.sleep(0.01)
                await until_it_waits(flows[0])
            while not StreamingBackend.cancelled:
                await asyncio.sleep(0.01)

    uvloop.run(main())


def test_a_client_that_reads_nothing_is_closed(tmp_path: Path, flows: list[ResponseFlow]) -> None:
    streaming_model(tmp_path)

    async def main() -> None:
        limits = Limits(stalled_s=1)
        async with (
            asyncio.timeout(PATIENCE_S),
            http_frontend(tmp_path, limits) as (frontend, _),
            connection(frontend, limit=4096) as (reader, writer),
        ):
            writer.write(REQUEST)
            while not StreamingBackend.cancelled:
                await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 20):
                    pass

    uvloop.run(main())


def test_a_stream_behind_another_waits_for_its_turn(tmp_path: Path, flows: list[ResponseFlow]) -> None:
    """Its events are kept, so its model must wait too."""
    streaming_model(tmp_path)

    async def main() -> None:
        async with http_frontend(tmp_path) as (frontend, _), connection(frontend, limit=4096) as (reader, writer):
            StreamingBackend.gate.clear()
            first = json.dumps({"IN": 1, "wait": True, "end": "alone"}).encode()
            writer.write(build("POST", "/v2/models/streaming/generate_stream", first) + REQUEST)
            async with asyncio.timeout(PATIENCE_S):
                while len(flows) < 2:
                    await asyncio.sleep(0.01)
                await until_it_waits(flows[1])
                StreamingBackend.gate.set()
                ends, body = 0, b""
                while ends < 2:
                    body += await reader.read(1 << 20)
                    ends = body.count(b"\r\n0\r\n\r\n")
            assert body.count(b"data: ") == 1 + EVENTS

    uvloop.run(main())
