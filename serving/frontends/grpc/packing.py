"""Compressed messages of gRPC calls: small ones at once, large ones on another thread.

Source: gRPC over HTTP/2, Message-Encoding: "deflate" means the zlib format.
"""

import asyncio
import zlib
from collections import deque
from typing import TYPE_CHECKING

from serving.frontends.shared.inflate import WINDOW_BITS
from serving.frontends.shared.worker_threads import checkpoint, in_thread

if TYPE_CHECKING:
    from serving.frontends.grpc.call import Call

LEVELS = {"none": 0, "low": 1, "medium": 6, "high": 9}  # of zlib
_STEP = 1 << 20  # bytes between two looks at whether anybody still waits
PACKED_FROM = 256  # bytes; what is smaller gains nothing
PACKED_AT_ONCE = 64 << 10  # bytes; what is larger would hold up other calls


def pack(data: bytes, encoding: str, level: int) -> tuple[bytes, bytes]:
    """The message's "compressed" byte, and the message: as it is where compressing it gains nothing."""
    packer = zlib.compressobj(level, wbits=WINDOW_BITS[encoding])
    if len(data) <= PACKED_AT_ONCE:
        packed = packer.compress(data) + packer.flush()
    else:
        pieces = []
        for start in range(0, len(data), _STEP):
            checkpoint()
            pieces.append(packer.compress(memoryview(data)[start : start + _STEP]))
        packed = b"".join((*pieces, packer.flush()))
    return (b"\1", packed) if len(packed) < len(data) else (b"\0", data)


class Packing:
    """The messages of one call that wait for a thread, and all that comes behind them, in order; None is the call's end."""

    def __init__(self, call: "Call", encoding: str, level: int) -> None:
        self._call = call
        self._encoding = encoding
        self._level = level
        self._waiting: deque[tuple[bytes, bool] | None] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, data: bytes, final: bool) -> None:
        self._waiting.append((data, final))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """The call succeeds when all that waits has been sent."""
        if self._waiting[-1] is not None:
            self._waiting.append(None)

    def drop(self) -> None:
        self._waiting.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        call = self._call
        try:
            while self._waiting:
                await self._send(self._waiting[0])
        except Exception as error:
            call.fail_because(error)
        self._task = None
        if not call.answered and not call.outgoing:
            call.drained()

    async def _send(self, message: tuple[bytes, bool] | None) -> None:
        """It leaves the queue when it is sent: until then what comes later goes behind it."""
        if message is None:
            self._waiting.popleft()
            self._call.succeed()
            return
        flag, data = await in_thread(pack, message[0], self._encoding, self._level)
        self._waiting.popleft()
        self._call.send((data,), len(data), message[1], self._encoding, flag)
