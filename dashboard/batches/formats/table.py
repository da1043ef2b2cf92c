"""The interface of a file's format, and the table of formats.

A file is split once into spans of consecutive rows. The rows of a span are read, sent to the model, and written with their
answers as a part. The result is made of the parts.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

from dashboard.shared.exceptions import Invalid
from repository.core.json_types import Json

Value: TypeAlias = "Json | bytes"

ERROR = "error"  # the column with the reason why a row has no answer

# Format -> the module of its class `Table`, and the ends of its files' names.
_FORMATS = {
    "csv": ("dashboard.batches.formats.csv_table", (".csv", ".tsv")),
    "jsonl": ("dashboard.batches.formats.jsonl_table", (".jsonl", ".ndjson")),
    "parquet": ("dashboard.batches.formats.parquet_table", (".parquet", ".pq")),
}
SUFFIXES = tuple(suffix for _, suffixes in _FORMATS.values() for suffix in suffixes)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of a file: the place of their bytes, or the numbers of their rows in a Parquet file."""

    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The most rows of a span, and its most bytes, unless one row has more."""

    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Row:
    """The values of a row by column. fault: why the row cannot be sent; "" if it can."""

    values: dict[str, Value]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a span. origin: the same rows in the form of the file, from which the format writes them."""

    rows: list[Row]
    origin: Sequence[object]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of answers. datatype: of its elements, in V2's words. is_list: whether an answer is a list of elements.

    Numbers that are not finite are "NaN", "Infinity" and "-Infinity"; bytes that are not text are {"b64": "..."}.
    """

    name: str
    datatype: str
    is_list: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a row: a value for each column of answers, or the reason why there is none."""

    values: list[Json] = field(default_factory=list)
    error: str = ""


class Table(ABC):
    """An open file of rows. columns: the names of its columns, as far as the beginning of the file shows."""

    columns: list[str]

    @abstractmethod
    def __init__(self, file: IO[bytes]) -> None:
        """Read the columns. Raises Invalid if the file has another format."""

    @abstractmethod
    def split(self, limits: Limits) -> Iterator[Span]:
        """Yield the spans of the file, in order. Raises Invalid if the file cannot be read to its end."""

    @abstractmethod
    def read(self, spans: Iterable[Span]) -> Iterator[Rows]:
        """Yield the rows of each span. The spans are in the file's order, and some may be left out."""

    @abstractmethod
    def write(self, target: IO[bytes], rows: Rows, columns: list[Column], answers: list[Answer]) -> None:
        """Write a part: the rows with their answers."""

    @abstractmethod
    def join(self, target: IO[bytes], parts: Iterable[Path], columns: list[Column]) -> None:
        """Write a whole file of these parts."""


def open_table(name: str, file: IO[bytes]) -> Table:
    """Return the table in an open file. Raises Invalid if its package is missing or the file has another format."""
    table: Table = importlib.import_module(_FORMATS[name][0]).Table(file)
    return table


def format_of(filename: str) -> str:
    """Return the format of a file, by its name. Raises Invalid if no format has names of that kind."""
    for name, (_, suffixes) in _FORMATS.items():
        if filename.lower().endswith(suffixes):
            return name
    raise Invalid(f"expected a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got '{filename[-80:]}'")
