"""JSONL files: an object of JSON on each line, in UTF-8. Blank lines are left out."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from dashboard.batches.formats import table
from dashboard.batches.formats.table import ERROR, Answer, Column, Limits, Row, Rows, Span, Value
from dashboard.shared.exceptions import Invalid

_LOOKED_AT = 20  # the rows from which the columns are known
_MOST_LINE_BYTES = 256 << 20
_LINE = "line"  # the column of a line that is no object


class Table(table.Table):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        first = next(self.split(Limits(_LOOKED_AT, 1 << 20)), None)
        if first is None:
            raise Invalid("the file is empty; expected an object of JSON on each line")
        rows = next(self.read([first])).rows
        if all(row.fault for row in rows):
            raise Invalid("the file is not JSONL: expected an object of JSON on each line")
        self.columns = list(dict.fromkeys(name for row in rows if not row.fault for name in row.values))

    def split(self, limits: Limits) -> Iterator[Span]:
        self._file.seek(0)
        offset, length, rows = 0, 0, 0
        for line in _lines(self._file):
            if rows and (rows == limits.rows or length + len(line) > limits.size):
                yield Span(offset, length, rows)
                offset, length, rows = offset + length, 0, 0
            length += len(line)
            rows += bool(line.strip())
        if rows:
            yield Span(offset, length, rows)

    def read(self, spans: Iterable[Span]) -> Iterator[Rows]:
        for span in spans:
            self._file.seek(span.offset)
            lines = [line for line in self._file.read(span.length).split(b"\n") if line.strip()]
            rows = [_row(line.removeprefix(b"\xef\xbb\xbf")) for line in lines]
            yield Rows(rows, rows)

    def write(self, target: IO[bytes], rows: Rows, columns: list[Column], answers: list[Answer]) -> None:
        names = [column.name for column in columns]
        for row, answer in zip(rows.rows, answers, strict=True):
            added = {ERROR: answer.error} if answer.error else dict(zip(names, answer.values, strict=True))
            taken = row.values
            target.write(_dumped({**taken, **{_free(name, taken): value for name, value in added.items()}}))

    def join(self, target: IO[bytes], parts: Iterable[Path], columns: list[Column]) -> None:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(_MOST_LINE_BYTES + 1):
        if len(line) > _MOST_LINE_BYTES:
            raise Invalid(f"a line of the file is longer than {_MOST_LINE_BYTES >> 20} MiB")
        yield line


def _row(line: bytes) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Row({_LINE: line.decode(errors="backslashreplace")}, "the line is not JSON")
    if not isinstance(value, dict):
        return Row({_LINE: value}, "the line is not an object of JSON")
    return Row(value)


def _free(name: str, taken: Mapping[str, Value]) -> str:
    """Return the name, with an underscore after it for as long as the row has a value of that name itself."""
    while name in taken:
        name += "_"
    return name


def _dumped(row: Mapping[str, Value]) -> bytes:
    try:
        text = json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only JSON's own escapes can carry
        text = json.dumps(row).encode()
    return text + b"\n"
