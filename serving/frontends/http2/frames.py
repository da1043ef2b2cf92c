"""HTTP/2 frames: numbers and byte forms (RFC 9113, sections 4, 6 and 7)."""

import struct
from enum import IntEnum
from typing import TypeVar

Payload = TypeVar("Payload", bytes, "bytes | memoryview")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_SIZE = 9
FRAME_HEADER = struct.Struct(">HBBBL")  # length (high 16, low 8), type, flags, stream identifier
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
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
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
    """The peer broke the protocol: GOAWAY with this code, then close."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamFailure(Exception):
    """The peer broke one stream: RST_STREAM with this code."""

    def __init__(self, code: ErrorCode, stream_id: int) -> None:
        super().__init__(code.name)
        self.code = code
        self.stream_id = stream_id


def frame_header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_header(len(payload), kind, flags, stream_id) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", key, value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode, debug: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_stream_id, code) + debug.encode()[:256])


SETTINGS_ACK = frame(SETTINGS, FLAG_ACK, 0)


def without_padding(payload: Payload) -> Payload:
    """The payload of a PADDED frame (section 6.1)."""
    if not payload:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "a padded frame has no pad length")
    if payload[0] >= len(payload):
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(flags: int, payload: bytes) -> bytes:
    """The part of a header block that a HEADERS frame holds, without padding and (deprecated) priority."""
    if flags & FLAG_PADDED:
        payload = without_padding(payload)
    if not flags & FLAG_PRIORITY:
        return payload
    if len(payload) < 5:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
    return payload[5:]


def read_settings(flags: int, payload: bytes) -> list[tuple[int, int]]:
    """The identifiers and values of a SETTINGS frame, checked (section 6.5.2); unknown ones are there too."""
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
    """The increment of a WINDOW_UPDATE frame (section 6.9)."""
    if len(payload) != 4:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE does not have 4 bytes")
    increment = int.from_bytes(payload, "big") & MAX_WINDOW
    if increment:
        return increment
    if stream_id:
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, stream_id)
    raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
