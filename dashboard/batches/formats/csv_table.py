"""CSV files (RFC 4180), with a header, in UTF-8; also separated by semicolons, tabs or bars.

Bytes that are not UTF-8 are kept as they are. The fields of a row stay the same, but may be quoted otherwise.
"""

import csv
import io
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from dashboard.batches.formats import table
from dashboard.batches.formats.table import ERROR, Answer, Column, Limits, Row, Rows, Span, Value
from dashboard.shared.exceptions import Invalid
from repository.core.json_types import Json

_SEPARATORS = ",;\t|"
_MOST_ROW_BYTES = 256 << 20
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"
_BLANK = (b"\n", b"\r\n", b"\r")

csv.field_size_limit(_MOST_ROW_BYTES)


class Table(table.Table):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.seek(0)
        self._start, header = 0, b""
        while (line := _line(file)) in _BLANK:
            self._start += len(line)
        if line.startswith(_UTF_16):
            raise Invalid("the file is in UTF-16; save it in UTF-8")
        self._separator = max(_SEPARATORS, key=_decoded(line).count)
        file.seek(self._start)
        header = next(self._records(), b"")
        self._start += len(header)
        text = _decoded(header.removeprefix(_BOM))
        self._newline = "\r\n" if text.endswith("\r\n") else "\n"
        fields = next(self._parsed(text), [])
        self.columns = [field.strip() for field in fields]
        if not any(self.columns):
            raise Invalid("the file is empty; expected a line with the names of the columns, and then the rows")
        if len(set(self.columns)) < len(self.columns):
            raise Invalid("two columns of the file have the same name")
        if ERROR in self.columns:
            raise Invalid(f"the file has a column '{ERROR}', which the result needs itself; rename it first")

    def split(self, limits: Limits) -> Iterator[Span]:
        self._file.seek(self._start)
        offset, length, rows = self._start, 0, 0
        for record in self._records():
            if rows and (rows == limits.rows or length + len(record) > limits.size):
                yield Span(offset, length, rows)
                offset, length, rows = offset + length, 0, 0
            length += len(record)
            rows += record not in _BLANK
        if rows:
            yield Span(offset, length, rows)

    def read(self, spans: Iterable[Span]) -> Iterator[Rows]:
        for span in spans:
            self._file.seek(span.offset)
            fields = [row for row in self._parsed(_decoded(self._file.read(span.length))) if row]
            yield Rows([self._row(one) for one in fields], fields)

    def write(self, target: IO[bytes], rows: Rows, columns: list[Column], answers: list[Answer]) -> None:
        none = [""] * len(columns)
        lines = (
            [*self._filled(origin), *([_cell(value) for value in answer.values] or none), answer.error]
            for origin, answer in zip(rows.origin, answers, strict=True)
        )
        target.write(self._written(lines))

    def join(self, target: IO[bytes], parts: Iterable[Path], columns: list[Column]) -> None:
        target.write(self._written([[*self.columns, *(column.name for column in columns), ERROR]]))
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)

    def _row(self, fields: list[str]) -> Row:
        if len(fields) == len(self.columns):
            return Row(dict(zip(self.columns, fields, strict=True)))
        values: dict[str, Value] = dict(zip(self.columns, fields, strict=False))
        return Row(values, f"the row has {len(fields)} fields, and the header has {len(self.columns)}")

    def _filled(self, origin: object) -> list[str]:
        """Return the fields of a row, with empty ones for those that it lacks; fields beyond the header stay in the last."""
        fields, count = cast("list[str]", origin), len(self.columns)
        if len(fields) > count:
            return [*fields[: count - 1], self._separator.join(fields[count - 1 :])]
        return fields + [""] * (count - len(fields))

    def _parsed(self, text: str) -> Iterator[list[str]]:
        try:
            yield from csv.reader(io.StringIO(text, newline="\n"), delimiter=self._separator)
        except csv.Error as error:
            if "new-line" in str(error):
                raise Invalid(
                    "the file is not CSV: a line ends in CR alone; save it with the line end LF or CRLF"
                ) from None
            raise Invalid(f"the file is not CSV: {error}") from None

    def _written(self, lines: Iterable[Sequence[str]]) -> bytes:
        rows = list(lines)
        text = self._joined(rows, self._newline)
        if self._newline == "\n" and "\r" in text:  # Python quotes a CR in a field only if the line's end has one
            text = self._joined(rows, "\r\n")
        return text.encode("utf-8", "surrogateescape")

    def _joined(self, rows: Sequence[Sequence[str]], end: str) -> str:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._separator, lineterminator=end).writerows(rows)
        return text.getvalue()

    def _records(self) -> Iterator[bytes]:
        """Yield the rows of the file, from its place on; a line that ends within quotes continues in the next one."""
        pieces: list[bytes] = []
        size = 0
        while line := _line(self._file):
            if (pieces or b'"' in line) and self._ends_within_quotes(line, bool(pieces)):
                pieces.append(line)
                size += len(line)
                if size > _MOST_ROW_BYTES:
                    break
                continue
            record = b"".join([*pieces, line]) if pieces else line
            if b"\r" in record.removesuffix(b"\n").removesuffix(b"\r"):
                next(self._parsed(_decoded(record)), None)  # refuses a line that ends in CR alone
            yield record
            pieces, size = [], 0
        if pieces:
            raise Invalid('the file is not CSV: a quotation mark (") is not closed')

    def _ends_within_quotes(self, line: bytes, within: bool) -> bool:
        """Return whether a line ends within a quoted field. within: whether it begins within one.

        As in RFC 4180, a quotation mark opens a field only at its first character.
        """
        opening = self._separator.encode() + b'"'
        at = 0
        if not within:
            text = line.removeprefix(_BOM)
            at = len(line) - len(text)
            if text.startswith(b'"'):
                within, at = True, at + 1
        while True:
            if within:
                at = line.find(b'"', at)
                if at < 0:
                    return True
                doubled = line[at + 1 : at + 2] == b'"'
                within, at = doubled, at + (2 if doubled else 1)
            else:
                at = line.find(opening, at)
                if at < 0:
                    return False
                within, at = True, at + len(opening)


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(_MOST_ROW_BYTES + 1)
    if len(line) > _MOST_ROW_BYTES:
        raise Invalid(f"a line of the file is longer than {_MOST_ROW_BYTES >> 20} MiB")
    return line


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _cell(value: Json) -> str:
    """Return a value as the text of a field: anything but a text as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
