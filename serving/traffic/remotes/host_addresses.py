"""Finds the addresses of another server's host, and connects to one of them.

The C library cannot cancel a look-up, and uvloop has four threads for all look-ups of the process. Look-ups of one host whose
name server is silent would block all of these threads. So each host is looked up on its own thread, once for all connections
that wait for it.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from serving.core.errors import outcome_of

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECT_S = 3.0  # time limit for each address except the last


class HostAddresses:
    """Used on the event loop's thread. Addresses change, so only the last address that worked is kept, to try it first."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._numeric = _is_numeric(host)
        self._last = ""
        self._looking: asyncio.Future[list[str]] | None = None

    async def connect(self, protocol: Callable[[], P], port: int, **arguments: Any) -> tuple[asyncio.BaseTransport, P]:
        """Connect to the first address that accepts. Return the result of `create_connection`. Raises OSError if all fail."""
        addresses = await self._find()
        addresses.sort(key=self._last.__ne__)
        *others, last = addresses
        for address in others:
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await self._connect(protocol, address, port, arguments)
            except (OSError, TimeoutError):
                pass
        return await self._connect(protocol, last, port, arguments)

    async def _connect(
        self, protocol: Callable[[], P], address: str, port: int, arguments: dict[str, Any]
    ) -> tuple[asyncio.BaseTransport, P]:
        connected = await asyncio.get_running_loop().create_connection(protocol, address, port, **arguments)
        self._last = address
        return connected

    async def _find(self) -> list[str]:
        """Return the addresses, from the look-up under way if there is one."""
        if self._numeric:
            return [self._host]
        if self._looking is None:
            loop = asyncio.get_running_loop()
            looking = self._looking = loop.create_future()
            looking.add_done_callback(self._end_look_up)
            threading.Thread(target=self._look_up, args=(loop, looking), name="look-up", daemon=True).start()
        found = await outcome_of(self._looking)
        return list(found)

    def _end_look_up(self, looking: asyncio.Future[list[str]]) -> None:
        self._looking = None
        looking.exception()  # so that asyncio does not log the error if no waiter is left

    def _look_up(self, loop: asyncio.AbstractEventLoop, looking: asyncio.Future[list[str]]) -> None:
        """Runs on a separate thread."""
        try:
            rows = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except Exception as error:
            tell: Callable[[], None] = partial(looking.set_exception, error)
        else:
            tell = partial(looking.set_result, found)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
