"""Messages between the core and a worker over a socket. A message is its length and a value in marshal's format.

All requests or answers of one turn of the loop are one message. marshal is the fastest encoding of the standard library. Its
format depends on the version of Python, but both ends run the same Python.
"""

import asyncio
import marshal
from abc import abstractmethod
from typing import Any, cast

_LENGTH = 4  # bytes of the length before a message, little-endian
_ROOM = 256 << 10  # bytes read by one call


class LinkConnection(asyncio.BufferedProtocol):
    """One end of the link. Subclasses handle incoming messages and create outgoing messages."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_ROOM))
        self._filled = 0
        self._scheduled = False

    # -- for subclasses ----------------------------------------------------------------------------------------------
    @abstractmethod
    def on_message(self, message: Any) -> None:
        """Take one message."""

    @abstractmethod
    def outgoing(self) -> Any:
        """Return the next message to send."""

    @abstractmethod
    def on_closed(self) -> None:
        """Called when either side has closed the connection."""

    def wake(self) -> None:
        """Send a message at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    @property
    def backlog(self) -> int:
        """Bytes that the socket has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def _send(self) -> None:
        self._scheduled = False
        if self.transport is not None:
            data = marshal.dumps(self.outgoing())
            self.transport.writelines((len(data).to_bytes(_LENGTH, "little"), data))

    # -- asyncio -----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.on_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, count: int) -> None:
        buffer = self._buffer
        filled = self._filled + count
        start = 0
        while filled - start >= _LENGTH:
            end = start + _LENGTH + int.from_bytes(buffer[start : start + _LENGTH], "little")
            if end > filled:
                break
            message = marshal.loads(buffer[start + _LENGTH : end])
            start = end
            self.on_message(message)
        self._filled = filled - start
        if start == filled:
            if len(buffer) > _ROOM:
                self._buffer = memoryview(bytearray(_ROOM))
        else:
            self._make_room(buffer[start:filled])

    def _make_room(self, rest: memoryview) -> None:
        """Move the beginning of a message to the start of a buffer that has room for the whole message."""
        needed = _LENGTH
        if len(rest) >= _LENGTH:
            needed += int.from_bytes(rest[:_LENGTH], "little")
        if needed <= len(self._buffer):
            self._buffer[: len(rest)] = rest
        else:
            buffer = memoryview(bytearray(needed))
            buffer[: len(rest)] = rest
            self._buffer = buffer
