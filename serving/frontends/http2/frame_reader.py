"""Splits received bytes into the connection preface, frames and complete header blocks.

Source: RFC 9113, sections 3.4, 4 and 6.10. A large DATA frame is delivered in parts as they come, and never collected first.
All connections of a listener read into one scratch buffer. Only bytes that must outlive a read are copied.
"""

import asyncio
import logging
from abc import abstractmethod

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from serving.frontends.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_MAX_FRAME_SIZE,
    FLAG_ACK,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FLAG_PRIORITY,
    FRAME_HEADER,
    HEADER_SIZE,
    HEADERS,
    MAX_WINDOW,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFailure,
    ErrorCode,
    StreamFailure,
    header_fragment,
)
from serving.frontends.http2.header_decompression import MAX_HEADER_LIST_SIZE

log = logging.getLogger(__name__)

RECEIVED_FRAME_SIZE = 256 * 1024  # our SETTINGS_MAX_FRAME_SIZE
# Frames of other kinds are limited to DEFAULT_MAX_FRAME_SIZE, because they are collected completely.
_LONGEST = {DATA: RECEIVED_FRAME_SIZE, HEADERS: RECEIVED_FRAME_SIZE, CONTINUATION: RECEIVED_FRAME_SIZE}
MAX_CONTINUATIONS = 16
_FORM = FLAG_END_HEADERS | FLAG_PADDED | FLAG_PRIORITY  # they show whether HEADERS is one complete header block
_read_header = FRAME_HEADER.unpack_from
Pieces = NDArray[np.uint8]  # [number of pieces, bytes of one piece]
_RUN_OF = 4096  # runs of equally long DATA frames are detected if the frames have at least this many bytes
_COPIED = 16 * 1024  # shorter reads are copied, because slices of bytes are cheaper than slices of a memoryview


def _frames_like(data: "bytes | memoryview", position: int, length: int) -> tuple[Pieces, int]:
    """Return the payloads of the complete frames, beginning at `position`, that have the same header, and the position after
    them. A large body comes as many frames of the same length."""
    step = HEADER_SIZE + length
    count = (len(data) - position) // step
    frames = np.frombuffer(data, np.uint8, count * step, position).reshape(count, step)
    if frames[:, :HEADER_SIZE].tobytes() != bytes(frames[0, :HEADER_SIZE]) * count:
        others = (frames[:, :HEADER_SIZE] != frames[0, :HEADER_SIZE]).any(axis=1)
        count = int(others.argmax())
    return frames[:count, HEADER_SIZE:], position + count * step


def make_scratch() -> memoryview:
    """Return a receive buffer for the connections of a listener."""
    return memoryview(bytearray(RECEIVED_FRAME_SIZE))


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameReader(asyncio.BufferedProtocol):
    """The receiving half of a connection. An exception in an `on_...` method ends the stream or the connection."""

    __slots__ = (
        "_block",
        "_block_ends",
        "_block_of",
        "_continuations",
        "_expects_preface",
        "_needed",
        "_part_ends",
        "_part_left",
        "_part_of",
        "_rest",
        "closing",
        "expects_settings",
        "scratch",
    )

    def __init__(self, scratch: memoryview) -> None:
        self.scratch = scratch
        self.closing = False  # True if further bytes are ignored
        self.expects_settings = True
        self._expects_preface = True
        self._rest: bytes | bytearray = b""  # the beginning of an incomplete frame
        self._needed = 0  # bytes that `_rest` must have before it is parsed
        self._part_left = 0  # missing bytes of a DATA frame that is received in parts
        self._part_of = 0
        self._part_ends = False
        self._block: bytearray | None = None  # a header block that CONTINUATION frames complete
        self._block_of = 0
        self._block_ends = False
        self._continuations = 0

    # -- for the connection ------------------------------------------------------------------------------------------
    @abstractmethod
    def on_data(self, stream_id: int, flags: int, data: "bytes | memoryview") -> None:
        """Handle a complete DATA frame. data: if a memoryview, valid until this returns."""

    @abstractmethod
    def on_data_run(self, stream_id: int, pieces: Pieces) -> None:
        """Handle a run of complete DATA frames that do not end the body. pieces: valid until this returns."""

    @abstractmethod
    def on_part_begins(self, stream_id: int, length: int, ends: bool) -> None:
        """Called when a DATA frame of `length` bytes begins that comes in parts. It has no padding."""

    @abstractmethod
    def on_part(self, stream_id: int, data: memoryview, ends: bool) -> None:
        """Handle the next part of a DATA frame. data: valid until this returns. ends: whether it is the stream's last part."""

    @abstractmethod
    def on_header_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Handle the header block of a HEADERS frame and its CONTINUATION frames."""

    @abstractmethod
    def on_window_update(self, stream_id: int, payload: bytes) -> None:
        """Handle a WINDOW_UPDATE frame. gRPC's clients send two for each call."""

    @abstractmethod
    def on_frame(self, kind: int, stream_id: int, flags: int, payload: bytes) -> None:
        """Handle any other frame."""

    @abstractmethod
    def on_stream_failure(self, failure: StreamFailure) -> None:
        """Called for a stream error of the peer."""

    @abstractmethod
    def fail(self, code: ErrorCode, message: str) -> None:
        """End the connection after a connection error of the peer."""

    # -- asyncio -----------------------------------------------------------------------------------------------------
    def get_buffer(self, sizehint: int) -> memoryview:
        return self.scratch

    def buffer_updated(self, count: int) -> None:
        if self.closing:
            return
        received = self.scratch[:count]
        data: bytes | memoryview = received
        if self._rest:
            self._rest += received
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
        elif count <= _COPIED:
            data = received.tobytes()
        try:
            self._parse(data)
        except ConnectionFailure as failure:
            self.fail(failure.code, failure.message)
        except Exception:
            log.exception("an HTTP/2 connection failed")
            self.fail(ErrorCode.INTERNAL_ERROR, "internal error")

    def _parse(self, data: "bytes | memoryview") -> None:
        """Handle every complete frame, and the received part of an incomplete DATA frame. Keep the rest."""
        position = 0
        end = len(data)
        self._needed = HEADER_SIZE
        if self._expects_preface:
            position = self._skip_preface(data)
        while not self.closing and not self._expects_preface:
            if self._part_left:
                position = self._continue_part(data, position)
            if end - position < HEADER_SIZE:
                break
            high, low, kind, flags, stream_id = _read_header(data, position)
            stream_id &= MAX_WINDOW
            length = high << 8 | low
            start = position + HEADER_SIZE
            stop = start + length
            if self.expects_settings or self._block is not None or length > DEFAULT_MAX_FRAME_SIZE:
                self._check_order(kind, stream_id, flags, length)
            try:
                if stop > end:
                    if kind != DATA or flags & FLAG_PADDED:
                        self._needed = stop - position
                        break
                    stop = start
                    self._begin_part(stream_id, flags, length)
                elif kind == DATA:
                    if length >= _RUN_OF and not flags and stop < end:
                        pieces, stop = _frames_like(data, position, length)
                        self.on_data_run(stream_id, pieces)
                    else:
                        self.on_data(stream_id, flags, data[start:stop])
                elif kind == HEADERS:
                    block = bytes(data[start:stop])
                    if flags & _FORM == FLAG_END_HEADERS and stream_id & 1 and length <= MAX_HEADER_LIST_SIZE:
                        self.on_header_block(stream_id, block, flags & FLAG_END_STREAM != 0)
                    else:
                        self._on_headers(stream_id, flags, block)
                elif kind == WINDOW_UPDATE:
                    self.on_window_update(stream_id, bytes(data[start:stop]))
                elif kind == CONTINUATION:
                    self._on_continuation(stream_id, flags, bytes(data[start:stop]))
                else:
                    self.on_frame(kind, stream_id, flags, bytes(data[start:stop]))
            except StreamFailure as failure:
                self.on_stream_failure(failure)
            position = stop
        self._rest = bytearray(data[position:]) if position < end else b""

    def _skip_preface(self, data: "bytes | memoryview") -> int:
        if not PREFACE.startswith(bytes(data[: len(PREFACE)])):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "expected HTTP/2; this port speaks gRPC")
        if len(data) < len(PREFACE):
            self._needed = 0  # parse again after each read, which may show that this is not HTTP/2
            return 0
        self._expects_preface = False
        return len(PREFACE)

    def _check_order(self, kind: int, stream_id: int, flags: int, length: int) -> None:
        """Raise for a frame that is too long, comes before SETTINGS, or interrupts a header block."""
        longest = _LONGEST.get(kind, DEFAULT_MAX_FRAME_SIZE)
        if length > longest:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"a frame is over {longest} bytes")
        if self.expects_settings and (kind != SETTINGS or flags & FLAG_ACK):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block_of):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")

    def _begin_part(self, stream_id: int, flags: int, length: int) -> None:
        self._part_of = stream_id
        self._part_left = length
        self._part_ends = bool(flags & FLAG_END_STREAM)
        self.on_part_begins(stream_id, length, self._part_ends)

    def _continue_part(self, data: "bytes | memoryview", position: int) -> int:
        """Deliver the received part of the incomplete DATA frame. Return where the next frame begins."""
        stop = min(len(data), position + self._part_left)
        self._part_left -= stop - position
        if stop > position:
            self.on_part(self._part_of, memoryview(data)[position:stop], self._part_ends and not self._part_left)
        return stop

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {stream_id}")
        block = header_fragment(flags, block)
        ends = bool(flags & FLAG_END_STREAM)
        if flags & FLAG_END_HEADERS:
            self._hand_over_block(stream_id, block, ends)
            return
        self._block = bytearray(block)
        self._block_of = stream_id
        self._block_ends = ends
        self._continuations = 0

    def _on_continuation(self, stream_id: int, flags: int, block: bytes) -> None:
        if self._block is None:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += block
        self._continuations += 1
        if len(self._block) > MAX_HEADER_LIST_SIZE or self._continuations > MAX_CONTINUATIONS:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too long")
        if flags & FLAG_END_HEADERS:
            whole = bytes(self._block)
            self._block = None
            self._hand_over_block(stream_id, whole, self._block_ends)

    def _hand_over_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        if len(block) > MAX_HEADER_LIST_SIZE:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too long")
        self.on_header_block(stream_id, block, ends)
