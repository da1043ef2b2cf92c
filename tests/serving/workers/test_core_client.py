"""The worker's end of the link: it gives places back that it has read, also without further requests."""

import asyncio
import os
import socket
from typing import Any

import numpy as np

from serving.cli.options import Options
from serving.resources.request_memory import RequestMemory
from serving.workers.link.answers import write_outputs
from serving.workers.link.link_connection import LinkConnection
from serving.workers.link.shared_area import AreaReader, AreaWriter, create_area
from serving.workers.link.shared_page import SharedPage
from serving.workers.program.core_client import CoreClient
from tests.serving.requests import in_flight

MB = 1 << 20


class CoreEnd(LinkConnection):
    """The other end: answers each request with a megabyte, and reuses its place once that is given back."""

    def __init__(self, area: AreaWriter) -> None:
        super().__init__()
        self.area = area
        self.answers: list[tuple[object, ...]] = []
        self.given_back: list[int] = []

    def on_message(self, message: Any) -> None:
        requests, _, freed, _ = message
        for number, *_ in requests:
            self.answers.append((number, 1, write_outputs({"OUT": np.ones(MB, np.int8)}, self.area), None))
            self.wake()
        self.given_back += freed

    def outgoing(self) -> Any:
        answers, self.answers = self.answers, []
        return answers, []

    def on_closed(self) -> None:
        """Nothing is left to do."""


def test_the_place_of_the_last_answer_is_given_back_though_nothing_follows() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        descriptors = create_area(MB), create_area(4 * MB)
        page, page_descriptor = SharedPage.create(1)
        areas = AreaWriter(descriptors[0]), AreaReader(descriptors[1])
        control, link, other = socket.socket(socket.AF_UNIX), *socket.socketpair()
        client = CoreClient(Options(model_repository=()), page, RequestMemory(MB), areas, control, lambda: None)
        end = CoreEnd(AreaWriter(descriptors[1]))
        for descriptor in (*descriptors, page_descriptor):
            os.close(descriptor)
        await loop.create_unix_connection(lambda: client, sock=link)
        await loop.create_unix_connection(lambda: end, sock=other)
        kept: list[Any] = []
        client.infer(in_flight("m", {}, lambda answer, final: kept.append(answer)))
        while not kept:
            await asyncio.sleep(0.001)
        client.beat()
        assert int(kept.pop().outputs["OUT"].sum()) == MB  # the client has taken it
        while not end.given_back:
            client.beat()
            await asyncio.sleep(0.001)
        for one in (client, end):
            if one.transport is not None:
                one.transport.abort()
        control.close()
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
