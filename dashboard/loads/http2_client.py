"""The client's side of HTTP/2 and gRPC's framing, as far as the load generators need it: one call at a time on a connection.

Source: RFC 9113, and gRPC's PROTOCOL-HTTP2. The header blocks are encoded once and then sent again, because a stock client uses
more CPU time than the server.
"""

import struct
from collections.abc import Mapping

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4  # identifiers of settings
END_STREAM = ACK = 1
END_HEADERS = 4
CANCEL = 8  # an error code of HTTP/2
SERVICE = "/inference.GRPCInferenceService/"
_HEADER = struct.Struct(">HBBBL")  # length (high 16, low 8), type, flags, stream identifier
_LARGEST_WINDOW = (1 << 31) - 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return a whole frame."""
    return _HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


def length_prefixed(message: bytes) -> bytes:
    """Return an uncompressed message in the form of a gRPC body."""
    return b"\0" + len(message).to_bytes(4, "big") + message


# The first bytes that a client sends. Its windows are so large that few clients have to enlarge them again. A header table of
# size 0 makes equal header blocks of the server mean equal fields.
CONNECTION_START = (
    PREFACE
    + frame(SETTINGS, 0, 0, struct.pack(">HLHL", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW))
    + frame(WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - 65_535).to_bytes(4, "big"))
)


class Http2Client:
    """The frames of one connection, for a subclass that has `write`. This class answers SETTINGS and PING, adds up the
    windows, and passes all other frames to `on_frame`."""

    def start_http2(self) -> None:
        """Begin HTTP/2 on a new connection."""
        self._unread = b""
        self._encoder = hpack.Encoder()
        self.stream_id = -1  # the stream of the last call
        # The bytes of data that the server takes: on a new stream, on the stream of the last call, on the connection.
        self.initial_window = self.stream_window = self.connection_window = 65_535
        self.write(CONNECTION_START)

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        raise NotImplementedError

    def on_larger_window(self) -> None:
        """React to a server that takes more data. By default nothing: the client sends small messages alone."""

    def header_block(
        self, method: str, authority: str = "localhost", metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the block of headers for a call of this method."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *(metadata or {}).items(),
        ]
        return bytes(self._encoder.encode(fields))

    def data_received(self, data: bytes) -> None:
        data = self._unread + data
        position = 0
        while len(data) - position >= _HEADER.size:
            high, low, kind, flags, stream_id = _HEADER.unpack_from(data, position)
            start = position + _HEADER.size
            stop = start + (high << 8 | low)
            if stop > len(data):
                break
            if kind == PING and not flags & ACK:
                self.write(frame(PING, ACK, 0, data[start:stop]))
            elif kind == SETTINGS and not flags & ACK:
                self._take_settings(data[start:stop])
                self.write(frame(SETTINGS, ACK, 0, b""))
            elif kind == WINDOW_UPDATE:
                self._enlarge(stream_id, int.from_bytes(data[start:stop], "big"))
            else:
                self.on_frame(kind, flags, stream_id, data[start:stop])
            position = stop
        self._unread = data[position:]

    def _take_settings(self, payload: bytes) -> None:
        for identifier, value in struct.iter_unpack(">HL", payload):
            if identifier == _INITIAL_WINDOW_SIZE:
                size, self.initial_window = value - self.initial_window, value
                self._enlarge(self.stream_id, size)

    def _enlarge(self, stream_id: int, size: int) -> None:
        if stream_id == 0:
            self.connection_window += size
        elif stream_id == self.stream_id:
            self.stream_window += size
        self.on_larger_window()
