"""Decodes header blocks with a cache of repeated blocks, and encodes them without a dynamic table (HPACK, RFC 7541)."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from hpack.table import HeaderTable

from serving.frontends.http2.frames import ConnectionFailure, ErrorCode
from serving.frontends.http2.header_decompression import (
    MAX_HEADER_LIST_SIZE,
    FieldDecoder,
    HeaderBlockError,
    HeaderList,
    HeaderListTooLongError,
)
from serving.frontends.shared.bounded_cache import BoundedCache

_CACHED_BLOCKS = 64
_CACHED_BLOCK_SIZE = 2048  # bytes
_STATIC = HeaderTable()

Head = TypeVar("Head")


class HeaderDecoder(Generic[Head]):
    """Decodes the blocks of one connection, and calls `parse` with the fields of each block.

    For each call, clients send the same block of references to the dynamic table. Its meaning is fixed until the table changes,
    so the result of `parse` is cached until then.
    """

    def __init__(self, parse: Callable[[HeaderList], Head]) -> None:
        self._parse = parse
        self._decoder = FieldDecoder()
        self._heads: BoundedCache[bytes, Head] = BoundedCache(_CACHED_BLOCKS)

    def decode(self, block: bytes) -> Head:
        """Return the result of `parse`. Raises ConnectionFailure if the block cannot be decoded."""
        head = self._heads.get(block)
        if head is not None:
            return head
        head = self._parse(self.decode_fields(block))
        if not self._decoder.changed and len(block) <= _CACHED_BLOCK_SIZE:
            self._heads.remember(block, head)
        return head

    def decode_fields(self, block: bytes) -> HeaderList:
        """Return the fields of a block in order. Blocks of ignored trailers must be decoded, too: they may change the table."""
        try:
            fields = self._decoder.decode(block)
        except HeaderListTooLongError:
            message = f"the header list is larger than {MAX_HEADER_LIST_SIZE} bytes"
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, message) from None
        except HeaderBlockError:
            raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, "the header block cannot be decoded") from None
        if self._decoder.changed:
            self._heads.clear()
        return fields


def _integer(value: int, prefix_bits: int, pattern: int) -> bytes:
    """Return `value` in RFC 7541's integer form (section 5.1). pattern: the other bits of the first byte."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([pattern | value])
    result = bytearray([pattern | limit])
    value -= limit
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def encode_headers(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a header block that uses no dynamic table, so that every connection can send the same block."""
    block = bytearray()
    for name, value in fields:
        index, _, full = _STATIC.search(name, value) or (0, name, None)
        if full is not None:
            block += _integer(index, 7, 0x80)
            continue
        block += _integer(index, 4, 0x00)
        if not index:
            block += _integer(len(name), 7, 0) + name
        block += _integer(len(value), 7, 0) + value
    return bytes(block)
