"""Parquet files, with the package arro3, which is a fifth of pyarrow's size: requirements/parquet.txt."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from dashboard.batches.formats import table
from dashboard.batches.formats.table import ERROR, Answer, Column, Limits, Row, Rows, Span
from dashboard.shared.exceptions import Invalid
from repository.core.json_types import Json
from repository.core.tensors import FLOATS

try:
    from arro3 import core as arrow
    from arro3 import io as parquet
except ImportError:
    raise Invalid("Parquet files need the package arro3-io: pip install -r requirements/parquet.txt") from None

_READ_ROWS = 1024  # the rows that are decoded at a time
_WRITER = {"compression": "snappy"}


class Table(table.Table):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._schema = self._opened(1).schema
        self.columns = list(self._schema.names)
        if len(set(self.columns)) < len(self.columns):
            raise Invalid("two columns of the file have the same name")
        if ERROR in self.columns:
            raise Invalid(f"the file has a column '{ERROR}', which the result needs itself; rename it first")

    def split(self, limits: Limits) -> Iterator[Span]:
        offset = rows = size = 0
        for batch in self._batches(min(_READ_ROWS, limits.rows)):
            if rows and (rows + batch.num_rows > limits.rows or size + batch.nbytes > limits.size):
                yield Span(offset, rows, rows)
                offset, rows, size = offset + rows, 0, 0
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows:
            yield Span(offset, rows, rows)

    def read(self, spans: Iterable[Span]) -> Iterator[Rows]:
        batches = self._batches(_READ_ROWS)
        at = 0  # the number of the next row of `batches`
        for span in spans:
            found: list[Any] = []
            while at < span.offset + span.length:
                batch = next(batches)
                first, after = max(span.offset - at, 0), min(span.offset + span.length - at, batch.num_rows)
                if first < after:
                    found.append(batch.slice(first, after - first))
                if after < batch.num_rows:
                    batches = chain([batch.slice(after, batch.num_rows - after)], batches)
                    at += after
                else:
                    at += batch.num_rows
            yield Rows([row for batch in found for row in self._rows(batch)], found)

    def write(self, target: IO[bytes], rows: Rows, columns: list[Column], answers: list[Answer]) -> None:
        written, at = [], 0
        for batch in cast("Sequence[Any]", rows.origin):
            here = answers[at : at + batch.num_rows]
            at += batch.num_rows
            for number, column in enumerate(columns):
                values = [None if answer.error else answer.values[number] for answer in here]
                batch = batch.append_column(*_array(column, values))
            errors = arrow.Array([answer.error or None for answer in here], arrow.DataType.string())
            written.append(batch.append_column(ERROR, errors))
        parquet.write_parquet(arrow.RecordBatchReader.from_batches(written[0].schema, written), target, **_WRITER)

    def join(self, target: IO[bytes], parts: Iterable[Path], columns: list[Column]) -> None:
        batches = (batch for part in parts for batch in parquet.read_parquet(part))
        first = next(batches, None)
        if first is None:
            empty = arrow.RecordBatchReader.from_batches(self._schema, [])
            parquet.write_parquet(empty, target, **_WRITER)
            return
        reader = arrow.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        parquet.write_parquet(reader, target, **_WRITER)

    def _opened(self, rows: int) -> Any:
        self._file.seek(0)
        try:
            return parquet.read_parquet(self._file, batch_size=rows)
        except BaseException as error:
            raise _unreadable("the file is not Parquet, or is damaged", error) from None

    def _batches(self, rows: int) -> Iterator[Any]:
        reader = iter(self._opened(rows))
        while True:
            try:
                batch = next(reader)
            except StopIteration:
                return
            except BaseException as error:
                raise _unreadable("the file cannot be read to its end", error) from None
            yield batch

    def _rows(self, batch: Any) -> Iterator[Row]:
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield Row(dict(zip(self.columns, values, strict=True)))


def _unreadable(words: str, error: BaseException) -> BaseException:
    """Return the refusal of a file.

    The package has an exception for each part of the format. At some damages it panics: a panic is no Exception.
    """
    if isinstance(error, Exception):
        return Invalid(f"{words} ({type(error).__name__}): write it again")
    if type(error).__name__ == "PanicException":
        return Invalid(f"{words}: write it again")
    return error


_TYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float32",
    "BF16": "float32",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
}


_NOT_FINITE: dict[Json, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _array(column: Column, values: list[Json]) -> tuple[Any, Any]:
    """Return a column of answers and its array: elements, or flat lists of elements if an answer is a list."""
    kind = getattr(arrow.DataType, _TYPES[column.datatype])()
    if not column.is_list:
        return arrow.Field(column.name, kind, nullable=True), arrow.Array([_plain(column, one) for one in values], kind)
    elements: list[Json] = []
    offsets = [0]
    for value in values:
        elements += _flat(value) if isinstance(value, list) else []
        offsets.append(len(elements))
    item = arrow.Field("item", kind, nullable=True)
    lists = arrow.list_array(
        arrow.Array(offsets, arrow.DataType.int32()),
        arrow.Array([_plain(column, one) for one in elements], kind),
        type=arrow.DataType.list(item),
        mask=arrow.Array([value is None for value in values], arrow.DataType.bool()),
    )
    return arrow.Field(column.name, arrow.DataType.list(item), nullable=True), lists


def _flat(value: Json) -> list[Json]:
    return [one for inner in value for one in _flat(inner)] if isinstance(value, list) else [value]


def _plain(column: Column, value: Json) -> Json:
    if isinstance(value, dict):
        return value["b64"]
    return _NOT_FINITE.get(value, value) if column.datatype in FLOATS and isinstance(value, str) else value
