"""One connection of the load generator: the common part of HTTP/1.1 and gRPC."""

import select
import socket
import ssl
from dataclasses import dataclass

CONNECT_S = 5.0  # the timeout of a connection
_RECEIVED_BYTES = 1 << 18
CLOSED = "the server closed the connection"


@dataclass(frozen=True)
class Target:
    """The server of a load. address: "host:port". context: the TLS context; None without TLS."""

    address: str
    context: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        """Return a connected socket that does not block. Raises OSError if the server cannot be reached."""
        host, _, port = self.address.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected = self.context.wrap_socket(plain, server_hostname=host.strip("[]")) if self.context else plain
        connected.setblocking(False)
        return connected


class Connection:
    """A connection with at most one request under way.

    due: the time at which that request was due, in seconds from the start of the load; None if the connection is free.
    wants: the events of epoll that the connection waits for. broken: true if the connection takes no further request.
    """

    def __init__(self, target: Target) -> None:
        self.socket = target.connect()
        self.due: float | None = None
        self.wants = select.EPOLLIN
        self.broken = False
        self._unsent = memoryview(b"")

    def send(self, number: int) -> None:
        """Send the request with this number."""
        raise NotImplementedError

    def feed(self, data: bytes) -> str | None:
        """Process received bytes. Return "" for a success, the reason of a failure, or None until the answer is complete."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send bytes, the rest of them when the socket takes more."""
        if self._unsent:
            self._unsent = memoryview(self._unsent.tobytes() + data)
            return
        sent = self._send_some(data)
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self.wants = select.EPOLLIN | select.EPOLLOUT

    def write_rest(self) -> None:
        """Continue `write` on a socket that takes bytes again."""
        self._unsent = self._unsent[self._send_some(self._unsent) :]
        if not self._unsent:
            self.wants = select.EPOLLIN

    def receive(self) -> str | None:
        """Read the received bytes. Return the result of `feed`, or the reason if the connection has ended."""
        result = None
        while True:
            try:
                data = self.socket.recv(_RECEIVED_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return result
            except OSError:
                data = b""
            if not data:
                self.broken = True
                return CLOSED
            result = self.feed(data)
            if not isinstance(self.socket, ssl.SSLSocket) or not self.socket.pending():
                return result

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError:
            return len(data)  # the end of the connection is seen when it is read
