"""Limits of one client: how much it may send, and how slow it may be.

A client that has begun a request must, in each period of `stall_s`, end the request or send `bytes_per_s` for each second. If
request memory is scarce, it must send SCARCE times as much, because slow clients hold memory longest.
A client must take TAKEN bytes of an answer in each period of `unread_s`. The period is MAKE_ROOM_S if other clients need memory
and this client holds at least an equal share of it.
"""

import asyncio
import fcntl
import random
import socket
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from serving.cli.options import Options
from serving.resources.request_memory import ConnectionMemory, RequestMemory

CONTROL_BODY = 1 << 20  # bytes of the largest request on a route that takes neither tensors nor files
SCARCE = 64
TAKEN = 64 << 10  # bytes
MAKE_ROOM_S = 2.0
_BYTES_ACKED = 120  # offset of the 64-bit number of acknowledged bytes in the kernel's struct tcp_info
BACKLOG = 1024  # connections of a listener that may wait to be accepted


class Awaited(Enum):
    """What the server waits for a client to do."""

    REQUEST = "send the rest of its request"
    RESPONSE = "take the rest of its response"
    MESSAGE = "send the next message on a stream that it has opened"


def with_jitter(max_age_s: float) -> float:
    """Return the maximum age of one connection: up to a tenth more or less, so that connections which were opened together do
    not end together. Source: gRPC proposal A9."""
    return max_age_s * random.uniform(0.9, 1.1)


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Timeouts in seconds, where 0 means no limit, and the lowest rate of a client in bytes per second."""

    stall_s: float = 30.0
    bytes_per_s: int = 1024
    idle_s: float = 3600.0
    unread_s: float = 300.0

    @classmethod
    def from_options(cls, options: Options) -> "ClientTimeouts":
        return cls(options.request_stall_secs, options.request_min_rate, options.grpc_stream_idle_secs)

    def span_s(self, awaited: Awaited) -> float:
        """Return the seconds in which a client must make progress."""
        spans = {Awaited.REQUEST: self.stall_s, Awaited.RESPONSE: self.unread_s, Awaited.MESSAGE: self.idle_s}
        return spans[awaited]

    def owed(self, awaited: Awaited, memory: RequestMemory) -> int:
        """Return the bytes that a client must send or take within `span_s`."""
        if awaited is not Awaited.REQUEST:
            return TAKEN if awaited is Awaited.RESPONSE else 1
        return max(1, int(self.stall_s * self.bytes_per_s * (SCARCE if memory.scarce else 1)))


STANDARD = ClientTimeouts()


class WatchedStream(Protocol):
    """A stream that may wait for its client."""

    def awaited(self) -> tuple[Awaited, int] | None:
        """Return what the client must do next, and how many bytes of it are done, or None if it is the server's turn."""

    def overdue(self, awaited: Awaited) -> None:
        """Called when the client has not done `awaited` in time."""


class ProgressWatch:
    """Watches how long each stream of a connection waits for its client."""

    def __init__(self, timeouts: ClientTimeouts, memory: RequestMemory) -> None:
        self._timeouts = timeouts
        self._memory = memory
        self._since: dict[WatchedStream, tuple[Awaited, int, float]] = {}  # awaited, bytes done, time
        self._paused = False

    def watch(
        self, streams: Iterable[WatchedStream], now: float, held: ConnectionMemory, taken: int | None = None
    ) -> None:
        """Call `overdue` of the streams whose client is too slow. Called about every second.

        held: the memory that their connection holds. taken: the result of `taken_by_peer` if writing is paused, else None. It
        measures the progress while writing is paused, because the streams cannot write then.
        """
        makes_room = held.must_make_room
        was_paused, self._paused = self._paused, taken is not None
        since: dict[WatchedStream, tuple[Awaited, int, float]] = {}
        overdue = []
        for stream in streams:
            found = stream.awaited()
            if found is None:
                continue
            awaited, done = found
            before = self._since.get(stream)
            span_s = self._timeouts.span_s(awaited)
            if awaited is Awaited.RESPONSE:
                span_s = MAKE_ROOM_S if makes_room else span_s
                done = done if taken is None else taken
                before = before if was_paused is self._paused else None  # `done` was measured in another way before
            if (
                before is None
                or before[0] is not awaited
                or not span_s
                or (awaited is Awaited.RESPONSE and done - before[1] >= TAKEN)
            ):
                since[stream] = (awaited, done, now)
            elif now - before[2] < span_s:
                since[stream] = before
            elif done - before[1] >= self._timeouts.owed(awaited, self._memory):
                since[stream] = (awaited, done, now)
            else:
                overdue.append((stream, awaited))
        self._since = since
        for stream, awaited in overdue:
            stream.overdue(awaited)


def taken_by_peer(transport: asyncio.Transport) -> int:
    """Return a number that grows with each written byte that the peer's machine takes."""
    connected = transport.get_extra_info("socket")
    with suppress(OSError):  # a Unix socket
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
        if acked := int.from_bytes(info[_BYTES_ACKED:], "little"):  # 0 if the kernel does not count them
            return acked
    waits = transport.get_write_buffer_size()
    with suppress(OSError, ValueError):  # it is closed
        waits += int.from_bytes(fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return -waits
