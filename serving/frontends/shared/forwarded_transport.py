"""The transport of a connection over which another process of this server forwards a client's requests."""

import asyncio
from typing import Any

PeerName = tuple[str, int]


class ForwardedTransport(asyncio.Transport):
    """The transport to the other process, with the client as its peer name. peer: the client's host and port, or None if they
    are not known."""

    def __init__(self, transport: asyncio.Transport, peer: PeerName | None) -> None:
        super().__init__({"peername": peer})
        self._transport = transport
        # Not wrapped, because each answer calls these methods, and a wrapper would cost an extra call.
        self.write = transport.write  # type: ignore[method-assign]
        self.writelines = transport.writelines  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return super().get_extra_info(name, default)
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._transport.write_eof()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
