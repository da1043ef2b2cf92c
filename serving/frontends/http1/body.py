"""Request bodies that come in several pieces, in chunks, or compressed.

Source: RFC 9112, section 7.1 (chunked); RFC 9110, section 8.4 (content codings).
"""

import re
import zlib

import numpy as np

from serving.frontends.http1.message import BodyTooLarge, Chunk, Head, HttpError
from serving.frontends.shared.client_limits import CONTROL_BODY
from serving.frontends.shared.compression import WINDOW_BITS, MemoryHolder, TooLargeError, inflate
from serving.resources.request_memory import RequestMemory

MAX_CHUNK_LINE = 256  # bytes of a chunk line (size and extensions), or of a trailer line
MAX_TRAILERS = 8 << 10
MAX_OVERHEAD = 16 << 10  # bytes of chunk lines beyond the allowance of each chunk (see _LINE)
_SMALL_CHUNK = re.compile(rb"([0-9a-fA-F]{1,3})\r\n")
_LOOKED_AT = 16 << 10  # bytes that are searched for small chunks at a time; one small chunk is shorter
_LINE = 16  # a chunk's allowance: its chunk line may be this many bytes longer than twice its data
ALIGNMENT = 64  # bytes; aligns the binary part of a large body, so that tensors can be views of it


class ChunkedBody:
    """An incremental decoder of a chunked body. `data` is the whole body when `done` is true."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.done = False
        self._limit = limit
        self._state = self._size
        self._line = bytearray()
        self._left = 0
        self._overhead = 0
        self._trailers = 0

    def feed(self, view: memoryview) -> int:
        """Take bytes up to the end of the body, and return their number. Raises HttpError if the body is malformed or too
        large."""
        position = 0
        while position < len(view) and not self.done:
            if self._state == self._size and not self._line:
                position = self._take_small_chunks(view, position)
            position = self._state(view, position) if position < len(view) else position
        return position

    def _take_small_chunks(self, view: memoryview, position: int) -> int:
        """Take small chunks without extensions. This is fast, because each byte of a body may be a chunk. Return the position
        after the last small chunk."""
        data = bytes(view[position : position + _LOOKED_AT])
        done = 0
        left = self._limit - len(self.data)  # bytes
        pieces = []
        while found := _SMALL_CHUNK.match(data, done):
            start = found.end()
            stop = start + int(found[1], 16)
            if stop == start or data[stop : stop + 2] != b"\r\n":
                break
            left -= stop - start
            if left < 0:
                raise too_large(self._limit)
            pieces.append(data[start:stop])
            done = stop + 2
        self.data += b"".join(pieces)
        return position + done

    def _read_line(self, view: memoryview, position: int) -> tuple[int, bytes | None]:
        """Take bytes up to CRLF. Return the new position and the line, or None if the line is not complete yet."""
        piece = bytes(view[position : position + MAX_CHUNK_LINE])
        end = piece.find(b"\n")
        self._line += piece if end < 0 else piece[: end + 1]
        if len(self._line) > MAX_CHUNK_LINE:
            raise HttpError(400, "a line of the chunked body is too long")
        if end < 0:
            return position + len(piece), None
        line = bytes(self._line)
        self._line.clear()
        if not line.endswith(b"\r\n"):
            raise HttpError(400, "expected CRLF at the end of a chunk line")
        return position + end + 1, line[:-2]

    def _size(self, view: memoryview, position: int) -> int:
        position, line = self._read_line(view, position)
        if line is None:
            return position
        digits = line.partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 12 or digits.strip(b"0123456789abcdefABCDEF"):
            raise HttpError(400, "expected a chunk size in hexadecimal digits")
        self._left = int(digits, 16)
        self._overhead = max(0, self._overhead + len(line) - _LINE - 2 * self._left)
        if self._overhead > MAX_OVERHEAD:
            raise HttpError(400, "the chunks of the body have more extensions than data")
        if len(self.data) + self._left > self._limit:
            raise too_large(self._limit)
        self._state = self._content if self._left else self._trailer
        return position

    def _content(self, view: memoryview, position: int) -> int:
        piece = view[position : position + self._left]
        self.data += piece
        self._left -= len(piece)
        if not self._left:
            self._state = self._end_of_chunk
        return position + len(piece)

    def _end_of_chunk(self, view: memoryview, position: int) -> int:
        position, line = self._read_line(view, position)
        if line:
            raise HttpError(400, "expected CRLF behind a chunk")
        if line is not None:
            self._state = self._size
        return position

    def _trailer(self, view: memoryview, position: int) -> int:
        position, line = self._read_line(view, position)
        if line is not None:
            self._trailers += len(line)
            self.done = not line
            if self._trailers > MAX_TRAILERS:
                raise HttpError(431, "the trailers of the chunked body are too long")
        return position


class IncomingBody:
    """A body that did not come with its head in one piece. A body of known length is received directly into its own buffer."""

    __slots__ = ("_chunked", "_filled", "buffer", "head")

    def __init__(self, head: Head, limit: int) -> None:
        """limit: bytes of the largest chunked body. Raises HttpError(503) if there is no memory for the announced length."""
        self.head = head
        self.buffer = _aligned_buffer(head) if head.content_length >= 0 else None
        self._chunked = ChunkedBody(limit) if self.buffer is None else None
        self._filled = 0

    @property
    def received(self) -> int:
        """Bytes of the body that have been received."""
        return self._filled if self._chunked is None else len(self._chunked.data)

    @property
    def done(self) -> bool:
        if self._chunked is not None:
            return self._chunked.done
        return self._filled == self.head.content_length

    def feed(self, view: memoryview) -> int:
        """Take bytes that were read into another buffer. Return their number."""
        if self._chunked is not None:
            return self._chunked.feed(view)
        assert self.buffer is not None
        size = min(len(view), self.head.content_length - self._filled)
        self.buffer[self._filled : self._filled + size] = view[:size]
        self._filled += size
        return size

    def free(self) -> memoryview:
        """Return the unfilled part of the buffer."""
        assert self.buffer is not None
        return self.buffer[self._filled :]

    def filled(self, count: int) -> None:
        """Count `count` bytes that were received into the view of `free`."""
        self._filled += count

    def parts(self) -> tuple[memoryview, memoryview]:
        """Return views of the JSON part and the binary part of the complete body."""
        if self._chunked is not None:
            return split_body(self.head, memoryview(self._chunked.data))
        assert self.buffer is not None
        return split_body(self.head, self.buffer)


def _aligned_buffer(head: Head) -> memoryview:
    """Return a buffer for a body, in which the binary part is aligned. np.empty does not touch its pages, so a falsely
    announced length costs no memory."""
    shift = -(head.header_length or 0) % ALIGNMENT
    try:
        return np.empty(head.content_length + shift, np.uint8).data[shift:]
    except MemoryError:
        raise HttpError(503, f"the server has no room for a body of {head.content_length} bytes now") from None


def split_body(head: Head, body: memoryview) -> tuple[memoryview, memoryview]:
    """Return the JSON part and the binary part of a body, as views."""
    split = len(body) if head.header_length is None else head.header_length
    return body[:split], body[split:]


def too_large(limit: int) -> HttpError:
    return BodyTooLarge(limit, "" if limit == CONTROL_BODY else "; use --http-max-input-size to increase the limit")


async def decompress(data: Chunk, encoding: str, limit: int, holder: MemoryHolder, memory: RequestMemory) -> memoryview:
    """Return the decompressed body. Raises HttpError if it is larger than `limit` bytes, or `data` is not in the encoding."""
    if encoding not in WINDOW_BITS:
        message = f"expected Content-Encoding {' or '.join(WINDOW_BITS)}, got '{encoding[:40]}'"
        raise HttpError(415, message, (("Accept-Encoding", ", ".join(WINDOW_BITS)),))
    try:
        inflater = await inflate(data, encoding, limit, holder, memory)
    except TooLargeError:
        raise too_large(limit) from None
    except zlib.error:
        raise HttpError(400, f"the request body is not valid {encoding}") from None
    if not inflater.complete:
        raise HttpError(400, f"the request body is not one complete {encoding} stream")
    return memoryview(inflater.made)
