"""Messages between the core and a worker arrive whole and in order, however the socket cuts them."""

import asyncio
import socket
from typing import Any

import pytest

from serving.workers.link.link_connection import LinkConnection


class Ends(LinkConnection):
    """An end that sends the values of `to_send`, and keeps those that came."""

    def __init__(self) -> None:
        super().__init__()
        self.to_send: list[object] = []
        self.received: list[Any] = []
        self.closed = asyncio.Event()

    def on_message(self, message: Any) -> None:
        self.received += message

    def outgoing(self) -> Any:
        sent, self.to_send = self.to_send, []
        return sent

    def on_closed(self) -> None:
        self.closed.set()


async def connected() -> tuple[Ends, Ends]:
    loop = asyncio.get_running_loop()
    ends = []
    for one in socket.socketpair():
        one.setblocking(False)
        ends.append((await loop.create_unix_connection(Ends, sock=one))[1])
    return ends[0], ends[1]


@pytest.mark.parametrize("sizes", [[0, 1, 5], [1 << 20, 3, 1 << 19], [(256 << 10) - size for size in range(40)]])
def test_messages_of_any_size_arrive_in_order(sizes: list[int]) -> None:
    async def run() -> None:
        here, there = await connected()
        for size in sizes:
            here.to_send.append(bytes(size))
            here.wake()
            await asyncio.sleep(0)
        while len(there.received) < len(sizes):
            await asyncio.sleep(0)
        assert [len(one) for one in there.received] == sizes
        assert here.transport is not None
        here.transport.close()
        await there.closed.wait()

    asyncio.run(run())


def test_values_of_one_turn_are_one_message() -> None:
    async def run() -> None:
        here, there = await connected()
        messages: list[Any] = []
        there.on_message = messages.append  # type: ignore[method-assign]
        for number in range(100):
            here.to_send.append(number)
            here.wake()
        while not messages:
            await asyncio.sleep(0)
        assert messages == [[*range(100)]]
        for end in (here, there):
            assert end.transport is not None
            end.transport.close()
            await end.closed.wait()

    asyncio.run(run())


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_a_message_may_come_in_pieces(cut: int) -> None:
    async def run() -> None:
        end = Ends()
        data = b"".join(len(one).to_bytes(4, "little") + one for one in (b"[\x01\x00\x00\x00N",) * 5)
        for start in range(0, len(data), cut):
            piece = data[start : start + cut]
            end.get_buffer(-1)[: len(piece)] = piece
            end.buffer_updated(len(piece))
        assert end.received == [None] * 5

    asyncio.run(run())
