"""Walks the fields of a mapped protobuf by their lengths, within the file's bounds and a limit on the number of fields.

ONNX files are read in this way, without classes for messages and without copying weights. Source: protobuf's encoding.
"""

import mmap
from collections.abc import Iterator

from serving.core.errors import invalid

MAX_FIELDS = 20_000_000  # the most fields of a file, which take about half a minute


class Truncated(Exception):
    """A length points past the end, or the bytes are no protobuf."""


class Source:
    """The mapped file, and the number of fields that may still be read. The number is limited, because a hostile file of tiny
    fields must not take hours."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.fields_left = MAX_FIELDS


Field = tuple[int, int, int, int]
"""Field number, value of a varint, start and end of the bytes. For numbers, start and end are where the next field begins."""


def fields(source: Source, start: int, end: int) -> Iterator[Field]:
    data = source.data
    position = start
    while position < end:
        source.fields_left -= 1
        if source.fields_left < 0:
            raise invalid(f"the ONNX file has more than {MAX_FIELDS} fields")
        key, position = varint(data, position, end)
        kind = key & 7
        if kind == 0:
            value, position = varint(data, position, end)
            yield key >> 3, value, position, position
        elif kind == 2:
            length, position = varint(data, position, end)
            if length > end - position:
                raise Truncated
            yield key >> 3, 0, position, position + length
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
            if position > end:
                raise Truncated
            yield key >> 3, 0, position, position
        else:
            raise Truncated


def varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Truncated


def text(source: Source, start: int, end: int) -> str:
    try:
        return source.data[start:end].decode()
    except UnicodeDecodeError:
        raise Truncated from None


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
