"""The orderly end of a web process under daphne: requests under way are answered before it ends.

By itself, daphne cancels all requests when it is told to end. A thread of a cancelled request then waits for the event loop,
which has ended, and the process waits for the thread for ever.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import daphne.http_protocol
from daphne.server import Server
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.tcp import Port

from dashboard.shared import heartbeat

# `up` kills a web process 5 s after it has told it to end.
UNDER_WAY_S = 3.0
THREADS_S = 0.5
POLL_S = 0.02

_log = logging.getLogger(__name__)
_reactor: Any = reactor  # its type is that of a module


def end_in_order() -> None:
    """Make daphne end so: it listens no more, answers the requests under way for UNDER_WAY_S at most, each as the last of its
    connection, and cancels what is left, with the WebSockets. A thread that has not ended soon after is left."""
    cancel_all = Server.kill_all_applications

    def end(server: Any) -> "Deferred[None]":
        return Deferred.fromFuture(asyncio.ensure_future(_end(server, lambda: cancel_all(server))))

    Server.kill_all_applications = end
    _reactor.addSystemEventTrigger("after", "shutdown", _leave_threads)


async def _end(server: Any, cancel_all: Callable[[], "Deferred[Any]"]) -> None:
    ports: list[Any] = [reader for reader in _reactor.getReaders() if isinstance(reader, Port)]
    for port in ports:
        port.stopListening()
    until = time.monotonic() + UNDER_WAY_S
    while (requests := list(_under_way(server))) and time.monotonic() < until:
        for request in requests:
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])
            request.channel.persistent = False
        await asyncio.sleep(POLL_S)
    if requests:
        _log.warning("%d requests were cancelled %.0f s after this process was told to end", len(requests), UNDER_WAY_S)
    # Daphne's own function expects an application in each row.
    server.connections = {key: row for key, row in server.connections.items() if "application_instance" in row}
    with suppress(TimeoutError):
        async with asyncio.timeout(THREADS_S):
            await cancel_all().asFuture(asyncio.get_running_loop())


def _under_way(server: Any) -> Iterator[Any]:
    """Yield the requests whose answers are not complete and whose clients are there."""
    for protocol, row in list(server.connections.items()):
        if isinstance(protocol, daphne.http_protocol.WebRequest) and "disconnected" not in row:
            yield protocol


def _leave_threads() -> None:
    def leave() -> None:
        time.sleep(THREADS_S)
        heartbeat.forget()
        os._exit(0)

    threading.Thread(target=leave, name="ending", daemon=True).start()
