"""Work in pure Python that resembles a server's work: bytes, objects, dictionaries, calls, callbacks of an event loop.

Builds of Python need different numbers of instructions for the same work: Debian's 3.11 needs 0.92 of the instructions of a
default build from source. The instructions of this work are therefore recorded, too. The ratio of its counts under two builds
scales the recorded figures.
"""

import asyncio
import struct
import sys

ROUNDS = 500
PASSES, ROOMS = 8, 8
_HEADER = struct.Struct(">HBBBL")
_FIELDS = b"host: localhost\r\ncontent-length: 64\r\ncontent-type: application/json\r\n\r\n"


class Request:
    """Represents a request on its way through the packages of the server."""

    __slots__ = ("answer", "fields", "name")

    def __init__(self, name: str, fields: dict[str, str]) -> None:
        self.name = name
        self.fields = fields
        self.answer = b""

    def size(self) -> int:
        return int(self.fields["content-length"])


def read(received: memoryview) -> Request:
    """Take a frame from the received bytes, and parse its fields."""
    _, length, _, _, stream_id = _HEADER.unpack_from(received)
    block = bytes(received[_HEADER.size : _HEADER.size + length])
    fields = {}
    position = 0
    while (end := block.find(b"\r\n", position)) > position:
        name, _, value = block[position:end].partition(b": ")
        fields[name.decode()] = value.decode("latin-1")
        position = end + 2
    return Request(f"request {stream_id}", fields)


def pass_on(request: Request, rooms: int) -> Request:
    """Pass the request through `rooms` more calls."""
    return pass_on(request, rooms - 1) if rooms else request


async def work(received: memoryview, counts: dict[str, int]) -> bytes:
    """Read one request, count it, and answer it in a callback."""
    loop = asyncio.get_running_loop()
    request = read(received)
    if isinstance(request, Request) and request.size() > 0:
        counts[request.name] = counts.get(request.name, 0) + 1
    for _ in range(PASSES):
        pass_on(request, ROOMS)
    answer = loop.create_future()
    loop.call_soon(answer.set_result, b"%d" % len(request.fields))
    request.answer = await answer
    return _HEADER.pack(0, len(request.answer), 0, 1, 1) + request.answer


async def repeat(times: int) -> None:
    received = memoryview(_HEADER.pack(0, len(_FIELDS), 0, 1, 1) + _FIELDS)
    counts: dict[str, int] = {}
    for _ in range(times):
        await work(received, counts)


def main() -> None:
    asyncio.run(repeat(10))
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(repeat(ROUNDS))
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
