"""A peer that reads slowly and steadily keeps its connection; one that has stopped does not."""

import asyncio
import time
from typing import Any

import pytest

from serving.frontends.http2.connection import STALLED_TIMEOUT_S, Connection
from serving.frontends.http2.frame_reader import make_scratch
from serving.frontends.shared.client_limits import TAKEN


class Link(asyncio.Transport):
    """A connection of which the test says how much the peer's machine has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *_: int) -> None:
        pass

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return bytes(size - 8) + self.taken.to_bytes(8, "little")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize(("each_time", "is_cut"), [(TAKEN, False), (TAKEN // 2, True), (0, True)])
def test_a_paused_connection_is_cut_where_next_to_nothing_is_taken(each_time: int, is_cut: bool) -> None:
    link = Link()
    connection: Connection[Any] = Connection(lambda fields: fields, lambda *_: None, set(), make_scratch())  # type: ignore[arg-type,return-value]
    connection.connection_made(link)
    connection.expects_settings = False
    connection.pause_writing()
    now = time.monotonic()
    for _ in range(3):
        now += STALLED_TIMEOUT_S + 1
        link.taken += each_time
        connection.tick(now, STALLED_TIMEOUT_S + 1)
    connection.connection_lost(None)
    assert link.is_aborted is is_cut
