"""The core's end of the link: answers that a worker does not take are bounded; all that it sends is answered."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.errors import Exhausted
from serving.core.in_flight import InFlightRequest
from serving.core.request import InferenceRequest
from serving.workers import worker_link
from serving.workers.link.answers import read_error
from serving.workers.link.link_connection import LinkConnection
from serving.workers.link.requests import RequestWriter
from serving.workers.link.shared_area import AreaReader, AreaWriter, create_area
from serving.workers.worker_link import WorkerLink
from tests.serving.in_process import core
from tests.support.model_factory import onnx_identity

MB = 1 << 20


class WorkerEnd(LinkConnection):
    """The other end: sends requests, and keeps the answers by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[object, ...]] = []
        self.answers: dict[int, Any] = {}
        self.freed: list[int] = []

    def on_message(self, message: Any) -> None:
        self.answers |= {number: (version, outputs) for number, version, outputs, _ in message[0]}
        self.freed += message[1]

    def outgoing(self) -> Any:
        sent, self.requests = self.requests, []
        return sent, [], [], []

    def on_closed(self) -> None:
        """Nothing is left to do."""

    def ask(self, *requests: tuple[object, ...]) -> None:
        self.requests += requests
        self.wake()

    async def wait_for(self, *numbers: int) -> None:
        while not set(numbers) <= set(self.answers):
            await asyncio.sleep(0.001)


@asynccontextmanager
async def linked(repository: Path, room: int) -> AsyncIterator[tuple[WorkerLink, WorkerEnd, RequestWriter]]:
    """A core with a link, its other end, and the writer of requests. room: bytes of shared memory for answers."""
    onnx_identity(repository)
    loop = asyncio.get_running_loop()
    async with core(repository) as server:
        await server.load_model("identity")
        areas = create_area(64 * MB), create_area(room)
        link = WorkerLink(server, AreaReader(areas[0]), AreaWriter(areas[1]), lambda: None)
        writer = RequestWriter(AreaWriter(areas[0]))
        for area in areas:
            os.close(area)
        mine, theirs = socket.socketpair()
        await loop.create_unix_connection(lambda: link, sock=mine)
        _, end = await loop.create_unix_connection(WorkerEnd, sock=theirs)
        yield link, end, writer
        for one in (link, end):
            if one.transport is not None:
                one.transport.abort()
        await asyncio.sleep(0)


def request(writer: RequestWriter, number: int, size: int = 4, model: str = "identity") -> tuple[object, ...]:
    """A request of `size` bytes."""
    tensor = np.full((1, size // 4), number, np.float32)
    return writer.write(number, InFlightRequest.unanswered(InferenceRequest(model, {"INPUT0": tensor})), "http", None)


def test_a_worker_that_takes_no_answers_makes_the_core_hold_no_more_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "MAX_BACKLOG", 4 * MB)

    async def run() -> None:
        async with linked(tmp_path, room=MB // 2) as (link, end, writer):
            assert end.transport is not None
            end.transport.pause_reading()
            for number in range(20):
                end.ask(request(writer, number, MB))
                while end.requests or end.backlog or not len(link):
                    await asyncio.sleep(0)
                while len(link):
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.001)
            assert 4 * MB < link.backlog < 7 * MB
            end.transport.resume_reading()
            await end.wait_for(*range(20))
            assert end.answers[0][0] == 1, "the first ones had room"
            error = read_error(end.answers[19][1])
            assert isinstance(error, Exhausted)
            end.ask(request(writer, 20))
            await end.wait_for(20)
            assert end.answers[20][0] == 1, "there is room again"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_request_that_cannot_be_read_is_answered_and_the_others_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with linked(tmp_path, room=MB) as (link, end, writer):
            first, second = request(writer, 1), request(writer, 2)
            unknown = (3, 999, *second[2:])
            cut = (4, second[1], "", 0, b"", None)
            end.ask(first, unknown, cut, second)
            await end.wait_for(1, 2, 3, 4)
            assert [end.answers[number][0] for number in (1, 2, 3, 4)] == [1, 1, None, None]
            assert len(link) == 0

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("model", ["identity", "absent"])
def test_the_place_of_a_request_is_free_once_it_is_answered_or_refused(tmp_path: Path, model: str) -> None:
    async def run() -> None:
        async with linked(tmp_path, room=4 * MB) as (link, end, writer):
            for number in range(3):
                end.ask(request(writer, number, MB, model))
                await end.wait_for(number)
                while len(end.freed) <= number:
                    link.beat()
                    await asyncio.sleep(0.001)

    gc.collect()
    gc.disable()  # it would free what is only forgotten
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        gc.enable()
