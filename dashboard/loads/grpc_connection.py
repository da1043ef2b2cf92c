"""The load generator's side of gRPC: unary calls one after the other, each on a stream of its own.

Source: RFC 9113 (flow control: section 5.2) and gRPC's PROTOCOL-HTTP2.
"""

from collections.abc import Sequence

import hpack

from dashboard.loads.connection import Connection, Target
from dashboard.loads.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    Http2Client,
    frame,
)
from dashboard.loads.requests import Request

_FRAME_BYTES = 16_384  # the smallest SETTINGS_MAX_FRAME_SIZE, which every server takes
_REFILL_BYTES = 1 << 30  # received bytes after which the connection's window is opened again
_REASON_CHARACTERS = 200


class GrpcConnection(Connection, Http2Client):
    """A connection for unary calls."""

    def __init__(self, target: Target, requests: Sequence[Request]) -> None:
        Connection.__init__(self, target)
        [first] = {(one.path, tuple(one.headers.items())) for one in requests}  # one header block fits all requests
        self._method, self._metadata = first[0].rpartition("/")[2], dict(first[1])
        self._authority = target.address
        self._bodies = [one.body for one in requests]
        self._block = b""
        self._statuses: dict[bytes, str] = {}  # trailers -> the result of `feed`
        self._rest = memoryview(b"")
        self._received = 0
        self._answered: str | None = None
        self.start_http2()

    def send(self, number: int) -> None:
        self.stream_id += 2
        if self.stream_id <= 3:  # the second block refers to the fields that the first put into the server's table
            self._block = self.header_block(self._method, self._authority, self._metadata)
        self.stream_window = self.initial_window
        self._rest = memoryview(self._bodies[number % len(self._bodies)])
        self._write_body(frame(HEADERS, END_HEADERS, self.stream_id, self._block))

    def _write_body(self, before: bytes = b"") -> None:
        """Send as much of the body as both windows allow."""
        parts = [before]
        while (
            self._rest and (size := min(len(self._rest), _FRAME_BYTES, self.connection_window, self.stream_window)) > 0
        ):
            part, self._rest = self._rest[:size], self._rest[size:]
            parts.append(frame(DATA, 0 if self._rest else END_STREAM, self.stream_id, bytes(part)))
            self.connection_window -= size
            self.stream_window -= size
        self.write(b"".join(parts))

    def feed(self, data: bytes) -> str | None:
        self._answered = None
        self.data_received(data)
        return self._answered

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS and flags & END_STREAM:
            self._answered = self._status(payload)
        elif kind == DATA:
            self._received += len(payload)
            if self._received > _REFILL_BYTES:
                self.write(frame(WINDOW_UPDATE, 0, 0, self._received.to_bytes(4, "big")))
                self._received = 0
        elif kind == RST_STREAM and stream_id == self.stream_id:
            self._answered = f"the server reset the stream with error {int.from_bytes(payload, 'big')}"
        elif kind == GOAWAY:
            self.broken = True
            self._answered = "the server is closing the connection (GOAWAY)"

    def on_larger_window(self) -> None:
        if self._rest:
            self._write_body()

    def _status(self, block: bytes) -> str:
        """Return "" for status OK, else the status with its message. The client's table is empty, so equal blocks are equal."""
        if block not in self._statuses:
            fields = {str(name): str(value) for name, value in hpack.Decoder().decode(block)}
            code, message = fields.get("grpc-status", "missing"), fields.get("grpc-message", "")
            if len(self._statuses) > 64:
                self._statuses.clear()
            self._statuses[block] = "" if code == "0" else f"gRPC status {code}: {message}"[:_REASON_CHARACTERS]
        return self._statuses[block]
