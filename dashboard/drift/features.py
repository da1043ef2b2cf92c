"""The columns of tensors: what is compared of a request or an answer, as a few numbers or words.

A small tensor gives a column for each element. A large one gives one column: the brightness of an image, the norm of an
embedding. A tensor whose shape varies gives its number of elements too. Only columns are kept in memory, never whole tensors.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_ELEMENTS = 32  # of a tensor with a column for each
MOST_COLUMNS = 400  # of one comparison
MOST_CATEGORIES = 30  # different values of a categorical column
_LEAST_ROWS_EACH = 10  # a column with fewer rows for each value is no categorical one
_CHANNELS = (1, 3, 4)
_LEAST_SIDE = 8  # pixels of an image
_LONGEST_WORD = 64  # characters; a longer value is a text, not a category

NUMERIC, CATEGORICAL = "numeric", "categorical"
# What a column has of its tensor: an element as it is, as a word, or its length; or one figure of all elements.
VALUE, WORD, LENGTH, BRIGHTNESS, NORM, ELEMENTS = "value", "word", "length", "brightness", "norm", "elements"
_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")

Numbers = NDArray[np.float64]
Elements = Sequence[bool] | Sequence[float] | Sequence[bytes] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of a tensor: its shape without the dimension of the batch, and its elements in their order."""

    shape: tuple[int, ...]
    elements: Elements


@dataclass(frozen=True, slots=True)
class Column:
    """What is compared. element: its place in the row of the tensor, None for a figure of the whole row."""

    tensor: str
    what: str
    element: int | None = None

    @property
    def name(self) -> str:
        place = "" if self.element is None else f"[{self.element}]"
        return self.tensor + place + ("" if self.what in (VALUE, WORD) else f" {self.what}")


@dataclass(slots=True)
class Table:
    """The values of the columns of some requests: floats, NaN for one that is missing, or words, None for a missing one."""

    values: dict[Column, list[float] | list[str | None]] = field(default_factory=dict)
    rows: int = 0

    def numbers(self, column: Column) -> Numbers:
        """Return a column as numbers."""
        return np.asarray(self.values[column], np.float64)

    def counts(self, column: Column) -> Counter[str | None]:
        """Return how often a column has each word, None for a missing one; a number becomes its text."""
        found: Counter[str | None] = Counter()
        for value, count in Counter[float | str | None](self.values[column]).items():
            found[_word(value)] += count
        return found

    def halve(self) -> None:
        """Keep every second request."""
        self.rows = (self.rows + 1) // 2
        for values in self.values.values():
            del values[1::2]


def columns_of(datatypes: Mapping[str, str], requests: Sequence[Mapping[str, TensorRow]]) -> list[Column]:
    """Return the columns of tensors, by some of their requests. datatypes: tensor -> V2's name of its datatype."""
    found: list[Column] = []
    for name, datatype in datatypes.items():
        shapes = {row.shape for request in requests if (row := request.get(name)) is not None}
        if shapes:
            found += _columns(name, datatype, shapes)
    return found[:MOST_COLUMNS]


def _columns(name: str, datatype: str, shapes: set[tuple[int, ...]]) -> list[Column]:
    shape = next(iter(shapes))
    if len(shapes) == 1 and math.prod(shape) <= MOST_ELEMENTS:
        places = range(math.prod(shape)) if math.prod(shape) != 1 else [None]
        kinds = (WORD, LENGTH) if datatype == "BYTES" else (WORD,) if datatype == "BOOL" else (VALUE,)
        return [Column(name, kind, place) for place in places for kind in kinds]
    sizes = [Column(name, ELEMENTS)] if len({math.prod(shape) for shape in shapes}) > 1 else []
    if datatype in ("BYTES", "BOOL"):
        return [*sizes, *([Column(name, LENGTH)] if datatype == "BYTES" else [])]
    image = all(map(_is_image, shapes))
    return [*sizes, Column(name, BRIGHTNESS if image else NORM)]


def _is_image(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is that of an image: two sides, and perhaps channels before or after them."""
    sides = [shape[:2], shape[1:]] if len(shape) == 3 else [shape] if len(shape) == 2 else []
    channels = len(shape) != 3 or shape[0] in _CHANNELS or shape[-1] in _CHANNELS
    return channels and any(min(pair) >= _LEAST_SIDE for pair in sides)


def add(table: Table, columns: Sequence[Column], request: Mapping[str, TensorRow]) -> None:
    """Add one request to a table."""
    table.rows += 1
    for column in columns:
        row = request.get(column.tensor)
        values = table.values.setdefault(column, [])
        if column.what == WORD:
            values.append(_category(row, column))  # type: ignore[arg-type]  # the column decides the type of its list
        else:
            values.append(_figure(row, column))  # type: ignore[arg-type]


def _category(row: TensorRow | None, column: Column) -> str | None:
    """Return an element as a word; a text that is too long for one is cut, so that the column does not become categorical."""
    place = column.element or 0
    if row is None or place >= len(row.elements):
        return None
    return _word(row.elements[place])


def _word(value: object) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bytes):
        return value[: _LONGEST_WORD + 1].decode(errors="backslashreplace")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figure(row: TensorRow | None, column: Column) -> float:
    if row is None:
        return math.nan
    if column.what == ELEMENTS:
        return float(len(row.elements))
    if column.element is not None or column.what == VALUE:
        place = column.element or 0
        return _number(row.elements[place], column.what) if place < len(row.elements) else math.nan
    if column.what == LENGTH:
        return float(sum(_number(one, LENGTH) for one in row.elements))
    values = np.asarray(row.elements, np.float64)
    if not values.size or not np.isfinite(values).all():
        return math.nan
    return float(values.mean() if column.what == BRIGHTNESS else np.linalg.norm(values))


def _number(value: object, what: str) -> float:
    """Return an element as a number; the length of a text is that of its characters, or of its bytes if it is no text."""
    if what == LENGTH and isinstance(value, bytes):
        try:
            return float(len(value.decode()))
        except UnicodeDecodeError:
            return float(len(value))
    number = float(value)  # type: ignore[arg-type]  # the datatype of the tensor says that it is a number
    return number if math.isfinite(number) else math.nan


def kinds_of(reference: Table, datatypes: Mapping[str, str]) -> dict[Column, str]:
    """Return the columns that are compared, and whether each is numeric or categorical, by the values of the reference.

    Integers and texts with few different values are categorical. Of an element that is a text, either its words or its length
    is compared.
    """
    found: dict[Column, str] = {}
    for column in reference.values:
        datatype = datatypes[column.tensor]
        if column.what == WORD:
            if datatype == "BOOL" or _few(reference.counts(column)):
                found[column] = CATEGORICAL
        elif column.what == LENGTH:
            if Column(column.tensor, WORD, column.element) not in found:
                found[column] = NUMERIC
        elif column.what == VALUE and datatype in _INTEGERS and _few(reference.counts(column)):
            found[column] = CATEGORICAL
        else:
            found[column] = NUMERIC
    return found


def _few(counts: Counter[str | None]) -> bool:
    counts.pop(None, None)
    fit = all(len(word) <= _LONGEST_WORD for word in counts if word is not None)
    return fit and 0 < len(counts) <= MOST_CATEGORIES and counts.total() >= _LEAST_ROWS_EACH * len(counts)
