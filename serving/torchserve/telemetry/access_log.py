"""access_log.log: a line for each request, in TorchServe's form.

    2026-11-22T15:35:00,225 - /127.0.0.1:51878 "GET /predictions/noop?x=1 HTTP/1.1" 200 1
    2026-11-22T15:37:05,882 - /127.0.0.1:40798 "gRPC org....InferenceAPIsService/Predictions HTTP/2.0" 0 23

Fields: client, request, HTTP or gRPC status, milliseconds until the answer. Logging a request only appends a tuple to a
list. A thread makes and writes the lines, a few times a second. Source: docs/logging.md of TorchServe 0.12, and its files.
"""

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serving.frontends.grpc.call import Call
from serving.frontends.grpc.status import Status
from serving.frontends.http1.message import UNKNOWN_HEAD, Head
from serving.frontends.shared.worker_threads import in_thread
from serving.torchserve.telemetry.log_file import LogFile, stamp

PAUSE_S = 0.25  # the pause between two writes
MOST = 200_000  # the most waiting lines; further lines are dropped, for example while a disk hangs
_IN_PATHS = "/:@!$&'()*+,;=~"


# (time in s, duration in ns, peer as the transport reports it, method, path, query, protocol, status)
_Answered = tuple[float, int, Any, str, str, str, str, int]


class AccessLog:
    """One log for all listeners of a server. Its methods are called on the event loop's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: LogFile | None = None
        self._waiting: list[_Answered] = []
        self._left_out = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._file = LogFile(self._path)

    async def close(self) -> None:
        """Write the remaining lines."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        await self._write()
        if self._file is not None:
            self._file.close()
            self._file = None

    def answered(self, client: asyncio.BaseTransport | None, head: Head, began_ns: int, status: int) -> None:
        """Record a request over HTTP, unless its head could not be read."""
        if head is not UNKNOWN_HEAD:
            took_ns = time.monotonic_ns() - began_ns if began_ns else 0
            peer = None if client is None else client.get_extra_info("peername")
            protocol = "HTTP/1.0" if head.http_1_0 else "HTTP/1.1"
            self._note((time.time(), took_ns, peer, head.method, head.path, head.query, protocol, status))

    def called(self, call: Call, status: Status) -> None:
        """Record a call over gRPC."""
        took_ns = time.monotonic_ns() - call.began_ns
        peer = call.connection.transport.get_extra_info("peername")
        path = call.head.path[1:200]
        self._note((time.time(), took_ns, peer, "gRPC", path, "", "HTTP/2.0", int(status)))

    def _note(self, line: _Answered) -> None:
        if len(self._waiting) >= MOST:
            self._left_out += 1
            return
        self._waiting.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._begin)

    def _begin(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_on())

    async def _write_on(self) -> None:
        await self._write()
        self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._begin) if self._waiting else None

    async def _write(self) -> None:
        lines, self._waiting = self._waiting, []
        left_out, self._left_out = self._left_out, 0
        if self._file is not None and lines:
            await in_thread(_append, self._file.append, lines, left_out)


def _append(append: Callable[[str], None], lines: list[_Answered], left_out: int) -> None:
    text = "".join(map(_line, lines))
    if left_out:
        text += f"{stamp(time.time())} - {left_out} requests were left out: this file could not be written as fast\n"
    append(text)


def _line(one: _Answered) -> str:
    at_s, took_ns, peer, method, path, query, protocol, status = one
    asked = f"{method} {_quoted(path)}{'?' + query if query else ''} {protocol}"
    second = int(at_s)
    at = f"{_second(second)},{int((at_s - second) * 1000):03d}"
    return f'{at} - {_format_peer(peer)} "{asked}" {status} {took_ns // 1_000_000}\n'


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    """Return a time in the log's form, without milliseconds."""
    return stamp(seconds).partition(",")[0]


@lru_cache(maxsize=1024)
def _quoted(path: str) -> str:
    return quote(path, safe=_IN_PATHS)


@lru_cache(maxsize=1024)
def _format_peer(peer: Any) -> str:
    """Return a client's address in Java's form; "/unix" for a Unix socket."""
    if not isinstance(peer, tuple):
        return "/unix"
    host, port = peer[:2]
    return f"/[{host}]:{port}" if ":" in host else f"/{host}:{port}"
