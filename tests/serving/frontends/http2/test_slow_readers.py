"""A peer that reads slowly and steadily keeps its connection and its streams; one that has stopped does not."""

import time
from typing import Any

import pytest

from serving.frontends.http2.connection import CLOSE_TIMEOUT_S, STALLED_TIMEOUT_S, Connection
from serving.frontends.http2.frame_reader import make_scratch
from serving.frontends.http2.frames import NO_HEADERS
from serving.frontends.http2.stream import Stream
from serving.frontends.shared.client_limits import MAKE_ROOM_S, TAKEN
from serving.resources.request_memory import RequestMemory
from tests.serving.frontends.link import Link

MB = 1 << 20


class Answered(Stream):
    """A stream whose answer waits."""

    def aborted(self) -> None:
        pass


def connected(link: Link, memory: RequestMemory) -> Connection[Any]:
    connection: Connection[Any] = Connection(
        lambda fields: fields,
        lambda connection, stream_id, head: Answered(connection, stream_id),  # type: ignore[abstract]
        set(),
        make_scratch(),
        memory=memory,
    )
    connection.connection_made(link)
    connection.expects_settings = False
    connection.pause_writing()
    return connection


@pytest.mark.parametrize(("each_time", "is_cut"), [(TAKEN, False), (TAKEN // 2, True), (0, True)])
def test_a_paused_connection_is_cut_where_next_to_nothing_is_taken(each_time: int, is_cut: bool) -> None:
    link = Link()
    connection = connected(link, RequestMemory())
    now = time.monotonic()
    for _ in range(3):
        now += STALLED_TIMEOUT_S + 1
        link.taken += each_time
        connection.tick(now, STALLED_TIMEOUT_S + 1)
    connection.connection_lost(None)
    assert link.is_aborted is is_cut


@pytest.mark.parametrize(("each_time", "is_cut"), [(1, False), (0, True)])
def test_a_connection_that_closes_waits_while_its_peer_takes_the_rest(each_time: int, is_cut: bool) -> None:
    link = Link()
    connection = connected(link, RequestMemory())
    link.taken = MB
    connection.close()
    now = time.monotonic()
    for _ in range(3):
        now += CLOSE_TIMEOUT_S + 1
        link.taken += each_time
        connection.tick(now, CLOSE_TIMEOUT_S + 1)
    connection.connection_lost(None)
    assert link.is_aborted is is_cut


@pytest.mark.interpreted
@pytest.mark.parametrize(("each_time", "is_cut"), [(TAKEN, False), (TAKEN // 2, True), (0, True)])
def test_where_others_need_room_the_bytes_that_the_peer_takes_count_while_none_can_be_written(
    each_time: int, is_cut: bool
) -> None:
    link, memory = Link(), RequestMemory(4 * MB)
    connection = connected(link, memory)
    stream = Answered(connection, 1)  # type: ignore[abstract]
    connection._streams.by_id[1] = stream
    connection.writer.send(stream, NO_HEADERS, [bytes(MB)], MB)
    memory.exhausted()
    now = time.monotonic()
    for _ in range(3):
        connection.tick(now, MAKE_ROOM_S)
        now += MAKE_ROOM_S
        link.taken += each_time
    assert connection.open_streams == (0 if is_cut else 1)
    connection.connection_lost(None)
    assert memory.taken == 0
