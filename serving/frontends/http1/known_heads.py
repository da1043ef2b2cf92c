"""A cache of parsed request heads and their routes, because clients repeat their heads.

Many clients change only few values each time: a trace context, a request ID or a length. A head with the request line and the
header names of a known head, in the same order, need not be parsed: it is the known head with other values. A value may differ
only if it is visible ASCII after one space, and its header does not change how the request is read. The two lengths may differ,
too. Any other head is parsed.
"""

import re
from itertools import compress
from operator import ne
from typing import Generic, TypeVar

from serving.frontends.http1.message import HOP_BY_HOP, Head
from serving.frontends.shared.bounded_cache import BoundedCache

LIMIT = 1024  # the number of cached heads
LONGEST = 2048  # longer heads (in bytes) are not cached
_LENGTHS = frozenset(("content-length", "inference-header-content-length"))
_LENGTH = re.compile(rb"[0-9]{1,15}")
_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_FIXED = HOP_BY_HOP | {"accept-encoding", "content-encoding", "expect"}

T = TypeVar("T")


class _KnownHead(Generic[T]):
    """A parsed head. Later heads may differ from it in some values."""

    __slots__ = ("_beginnings", "_found", "_lines", "_names", "_other_lengths", "_varied")

    def __init__(self, lines: list[bytes], found: tuple[Head, T]) -> None:
        self._lines = lines
        self._found = found
        self._names = ["", *found[0].headers, "", ""]
        # Each line up to its value; b"" if a head with another value must be parsed.
        self._beginnings = [_beginning(line, name) for line, name in zip(lines, self._names, strict=True)]
        self._varied: tuple[int, ...] = ()  # indexes of the lines that differed in the previous head
        self._other_lengths = False  # whether one of these lines is a length

    def with_values_of(self, lines: list[bytes]) -> tuple[Head, T] | None:
        """Return the head of these lines, or None if it must be parsed. lines: as many lines as this head has."""
        found = self._read(lines, self._varied)
        if found is None:
            self._varied = tuple(compress(range(len(lines)), map(ne, lines, self._lines)))
            self._other_lengths = any(self._names[number] in _LENGTHS for number in self._varied)
            found = self._read(lines, self._varied)
        return found

    def _read(self, lines: list[bytes], varied: tuple[int, ...]) -> tuple[Head, T] | None:
        """Return the head of these lines if only the lines with the indexes `varied` differ; else None."""
        others = lines.copy()
        head, attached = self._found
        headers = head.headers.copy()
        for number in varied:
            line, beginning, name = lines[number], self._beginnings[number], self._names[number]
            form = _LENGTH if name in _LENGTHS else _VALUE
            if not beginning or not line.startswith(beginning) or not form.fullmatch(line, len(beginning)):
                return None
            others[number] = self._lines[number]
            headers[name] = line[len(beginning) :].decode()
        return (head.with_headers(headers, self._other_lengths), attached) if others == self._lines else None


def _beginning(line: bytes, name: str) -> bytes:
    beginning = line[: len(name) + 2]
    return beginning if name not in _FIXED and beginning.decode("latin-1").lower() == f"{name}: " else b""


class KnownHeads(Generic[T]):
    """Parsed heads, each with an attached T, such as its route. T depends only on the request line."""

    def __init__(self) -> None:
        self._exact: BoundedCache[bytes, tuple[Head, T]] = BoundedCache(LIMIT)
        # Keys: the request line and the number of lines.
        self._heads: BoundedCache[tuple[bytes, int], _KnownHead[T]] = BoundedCache(LIMIT)

    def find(self, data: bytes) -> tuple[Head, T] | None:
        """Return the head in `data` and its T, or None if `data` must be parsed. data: a head up to its empty line."""
        found = self._exact.get(data)
        if found is not None or len(data) > LONGEST:
            return found
        lines = data.split(b"\r\n")
        known = self._heads.get((lines[0], len(lines)))
        return None if known is None else known.with_values_of(lines)

    def remember(self, data: bytes, head: Head, attached: T) -> None:
        if len(data) > LONGEST:
            return
        found = head, attached
        self._exact.remember(data, found)
        lines = data.split(b"\r\n")
        if len(lines) == len(head.headers) + 3:  # no name is repeated
            self._heads.remember((lines[0], len(lines)), _KnownHead(lines, found))
