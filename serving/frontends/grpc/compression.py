"""Compresses and decompresses messages of gRPC calls: small messages on the event loop, large messages on a worker thread.

Source: gRPC's PROTOCOL-HTTP2, Message-Encoding, where "deflate" means the zlib format.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from serving.frontends.grpc.status import CallError, Status
from serving.frontends.http2.stream import Buffer
from serving.frontends.shared.compression import WINDOW_BITS, MemoryHolder, TooLargeError, deflate, inflate
from serving.frontends.shared.worker_threads import in_thread
from serving.resources.request_memory import RequestMemory

LEVELS = {"none": 0, "low": 1, "medium": 6, "high": 9}  # --grpc-infer-response-compression-level -> zlib's level
COMPRESSED_FROM = 256  # bytes; smaller messages gain nothing
COMPRESSED_ON_LOOP = 64 << 10  # bytes; larger messages would delay other calls


async def decompress(
    content: "bytes | memoryview", encoding: str, limit: int, holder: MemoryHolder, memory: RequestMemory
) -> memoryview:
    """Return the decompressed message. holder: the stream that takes the bytes of the message from `memory`.
    Raises CallError if the message is larger than `limit` bytes, or `content` is not in the encoding."""
    try:
        inflater = await inflate(content, encoding, limit, holder, memory)
    except TooLargeError:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message inflates to over {limit} bytes") from None
    except zlib.error:
        raise CallError(Status.INVALID_ARGUMENT, "a message cannot be decompressed") from None
    if not inflater.complete:
        raise CallError(Status.INVALID_ARGUMENT, f"a message is not whole in its encoding {encoding}")
    return memoryview(inflater.made)


def accepted_encoding(headers: Mapping[str, str]) -> str:
    """Return an encoding that a client with these headers accepts; "" if it accepts none."""
    accepted = headers.get("grpc-accept-encoding", "").replace(" ", "").split(",")
    return next((name for name in WINDOW_BITS if name in accepted), "")


def compress(data: bytes, encoding: str, level: int) -> tuple[bytes, bytes]:
    """Return the compressed flag and the message. The message is not compressed if that would not make it smaller."""
    packed = deflate((memoryview(data),), encoding, level)
    return (b"\1", packed) if len(packed) < len(data) else (b"\0", data)


class SendingCall(Protocol):
    """The part of a call that sends compressed messages."""

    answered: bool
    outgoing: "deque[bytes | memoryview] | None"

    def send(self, parts: Iterable[Buffer], size: int, final: bool, encoding: str, flag: bytes) -> None: ...

    def succeed(self) -> None: ...

    def fail_because(self, error: Exception) -> None: ...

    def drained(self) -> None: ...


class CompressionQueue:
    """The messages of one call that wait to be sent in order: a large message that is being compressed on a thread, and all
    messages after it. None marks the end of the call."""

    def __init__(self, call: SendingCall, encoding: str, level: int) -> None:
        self._call = call
        self._encoding = encoding
        self._level = level
        self._waiting: deque[tuple[bytes, bool] | None] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, data: bytes, final: bool) -> None:
        """Send this message after the earlier messages."""
        self._waiting.append((data, final))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Let the call succeed after all waiting messages."""
        if self._waiting[-1] is not None:
            self._waiting.append(None)

    def drop(self) -> None:
        """Forget all waiting messages."""
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
        """Send the first message. It stays in the queue until it is sent, so that later messages wait."""
        if message is None:
            self._waiting.popleft()
            self._call.succeed()
            return
        data, final = message
        flag, packed = await in_thread(compress, data, self._encoding, self._level)
        self._waiting.popleft()
        self._call.send((packed,), len(packed), final, self._encoding, flag)
