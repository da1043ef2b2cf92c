"""HTTP/2 frames: constants, encoding and checks (RFC 9113, sections 4, 6 and 7)."""

import struct
from enum import IntEnum
from typing import TypeVar

Payload = TypeVar("Payload", bytes, "bytes | memoryview")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_SIZE = 9
FRAME_HEADER = struct.Struct(">HBBBL")  # length (high 16, low 8), type, flags, stream identifier
_NUMBER = struct.Struct(">L")
DEFAULT_WINDOW = 65_535
MAX_WINDOW = (1 << 31) - 1
DEFAULT_MAX_FRAME_SIZE = 16_384
LARGEST_MAX_FRAME_SIZE = (1 << 24) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

FLAG_END_STREAM = 0x1
FLAG_ACK = 0x1
FLAG_END_HEADERS = 0x4
FLAG_PADDED = 0x8
FLAG_PRIORITY = 0x20


class Setting(IntEnum):
    """Identifiers of the settings (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """The error codes of RST_STREAM and GOAWAY (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ConnectionFailure(Exception):
    """A connection error of the peer, answered with GOAWAY and the end of the connection (section 5.4.1)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamFailure(Exception):
    """A stream error of the peer, answered with RST_STREAM (section 5.4.2)."""

    def __init__(self, code: ErrorCode, stream_id: int) -> None:
        super().__init__(code.name)
        self.code = code
        self.stream_id = stream_id


def frame_header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the nine bytes before a payload of `length` bytes."""
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_header(len(payload), kind, flags, stream_id) + payload


# A HEADERS frame without its stream identifier: the bytes before it (length, type, flags), and the header block after it.
HeaderFrame = tuple[bytes, bytes]
NO_HEADERS: HeaderFrame = (b"", b"")


def header_frame(block: bytes, ends: bool = False) -> HeaderFrame:
    """Return the HEADERS frame of a complete header block. ends: whether it is the last frame of its stream."""
    flags = FLAG_END_HEADERS | FLAG_END_STREAM if ends else FLAG_END_HEADERS
    return frame_header(len(block), HEADERS, flags, 0)[:-4], block


def settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", key, value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return the frame that lets the peer send `increment` more bytes on a stream, or on the connection if it is stream 0."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode, debug: str = "") -> bytes:
    """Return the frame that ends a connection. Streams above `last_stream_id` were not processed."""
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_stream_id, code) + debug.encode()[:256])


SETTINGS_ACK = frame(SETTINGS, FLAG_ACK, 0)


def without_padding(payload: Payload) -> Payload:
    """Return the payload of a PADDED frame without its padding (section 6.1)."""
    if not payload:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "a padded frame has no pad length")
    if payload[0] >= len(payload):
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(flags: int, payload: bytes) -> bytes:
    """Return the header block fragment of a HEADERS frame, without padding and the deprecated priority."""
    if flags & FLAG_PADDED:
        payload = without_padding(payload)
    if not flags & FLAG_PRIORITY:
        return payload
    if len(payload) < 5:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
    return payload[5:]


def read_settings(stream_id: int, flags: int, payload: bytes) -> list[tuple[int, int]]:
    """Return the identifiers and values of a SETTINGS frame, including unknown identifiers. Raises for values that section
    6.5.2 forbids."""
    if stream_id:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
    if len(payload) % 6 or (flags & FLAG_ACK and payload):
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS has a wrong length")
    values: list[tuple[int, int]] = list(struct.iter_unpack(">HL", payload))
    for key, value in values:
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is over 2^31-1")
        if key == Setting.MAX_FRAME_SIZE and not DEFAULT_MAX_FRAME_SIZE <= value <= LARGEST_MAX_FRAME_SIZE:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
    return values


def read_increment(stream_id: int, payload: bytes) -> int:
    """Return the increment of a WINDOW_UPDATE frame. Raises for 0 and for a wrong length (section 6.9)."""
    if len(payload) != 4:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE does not have 4 bytes")
    increment: int = _NUMBER.unpack(payload)[0] & MAX_WINDOW
    if increment:
        return increment
    if stream_id:
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, stream_id)
    raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")


def check_priority(stream_id: int, payload: bytes) -> None:
    """Raise for a PRIORITY frame that section 6.3 does not allow. Priorities are deprecated and ignored."""
    if not stream_id:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
    if len(payload) != 5:
        raise StreamFailure(ErrorCode.FRAME_SIZE_ERROR, stream_id)


def check_rst_stream(payload: bytes) -> None:
    """Raise for an RST_STREAM frame of a wrong length (section 6.4)."""
    if len(payload) != 4:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM does not have 4 bytes")


def check_ping(stream_id: int, payload: bytes) -> None:
    """Raise for a PING frame that section 6.7 does not allow."""
    if stream_id:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
    if len(payload) != 8:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "PING does not have 8 bytes")


def check_goaway(stream_id: int, payload: bytes) -> None:
    """Raise for a GOAWAY frame that section 6.8 does not allow."""
    if stream_id:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
    if len(payload) < 8:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has fewer than 8 bytes")
