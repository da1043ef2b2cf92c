"""Reads and writes the Parquet files of captures (repository.core.captures), with the package arro3.

Record     one request with its answer, as tensors
Row        the same with the bytes of the tensors, which costs the server's event loop the least
    Layout     names, datatypes and shapes of a row's tensors, which most rows have in common
Rows       the rows of one file, as columns

Rows are written and read as columns, because a file may have 10,000 of them.
"""

import functools
import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from repository.core.errors import CaptureUnusable

Tensor = NDArray[Any]

PACKAGE = "captures need the package arro3-io: pip install -r requirements/parquet.txt"
_COMPRESSION = "snappy"  # half of the time that zstd takes for a small file; files are an eighth larger
_NAMES = {
    "bool": "BOOL",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
_DTYPES: dict[str, Any] = {name: np.dtype(kind) for kind, name in _NAMES.items() if kind != "bfloat16"}
_DTYPES |= {"BF16": np.dtype(ml_dtypes.bfloat16), "BYTES": np.dtype(object)}
_TEXT = np.dtype(object)
_WIDER = ("FP16", "BF16")  # Parquet's readers know no such floats, so they are written as FP32


@dataclass(slots=True)
class Record:
    """One request with its answer. at: unix seconds. The tensors have their batch dimension. See repository.core.captures."""

    number: int
    id: str
    at: float
    version: int
    arm: str
    error: str | None
    latency_us: int
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class TensorColumn:
    """One input or output of all rows. values: the elements of all rows; those of BYTES are `bytes`.

    Row i has values[offsets[i]:offsets[i + 1]], of shape shapes[shape_offsets[i]:shape_offsets[i + 1]], if present[i].
    """

    datatype: str
    values: Tensor
    offsets: NDArray[np.int64]
    shapes: NDArray[np.int64]
    shape_offsets: NDArray[np.int64]
    present: NDArray[np.bool_]

    def tensor(self, row: int) -> Tensor | None:
        """Return the tensor of a row in its shape and datatype, or None if the request lacks it or a mask dropped it."""
        if not self.present[row]:
            return None
        shape = self.shapes[self.shape_offsets[row] : self.shape_offsets[row + 1]]
        found = self.values[self.offsets[row] : self.offsets[row + 1]].reshape(tuple(shape))
        return found.astype(dtype_of(self.datatype)) if self.datatype in _WIDER else found


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one file, as columns. at: unix seconds."""

    numbers: NDArray[np.int64]
    ids: list[str]
    at: NDArray[np.float64]
    versions: NDArray[np.int64]
    arms: list[str]
    errors: list[str | None]
    latency_us: NDArray[np.int64]
    inputs: dict[str, TensorColumn]
    outputs: dict[str, TensorColumn]

    def __len__(self) -> int:
        return len(self.ids)


@functools.lru_cache(128)  # the name of a dtype takes numpy many microseconds
def datatype_name(dtype: "np.dtype[Any]") -> str:
    """Return the datatype in the protocol of a numpy dtype."""
    return "BYTES" if dtype.kind in "OSU" else _NAMES.get(dtype.name, dtype.name.upper())


def dtype_of(datatype: str) -> "np.dtype[Any]":
    """Return the numpy dtype of a datatype in the protocol."""
    return _DTYPES[datatype] if datatype in _DTYPES else np.dtype(datatype.lower())


# -- rows ----------------------------------------------------------------------------------------------------------------
Copied = bytes | list[Any]  # of one tensor: its bytes in row-major order; the elements of BYTES


class Column(NamedTuple):
    """One input or output in a file. kept: False if a mask drops the values, so that only the shapes are written."""

    is_input: bool
    name: str
    dtype: "np.dtype[Any]"
    kept: bool

    @property
    def is_text(self) -> bool:
        return self.dtype == _TEXT


class Layout:
    """The tensors of a row. columns, shapes, counts (of elements): one for each tensor, the inputs first.

    size: bytes of all tensors but texts. plain: every tensor is kept, and none is a text.
    """

    __slots__ = ("columns", "counts", "plain", "shapes", "size")

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        dropped_inputs: frozenset[str] = frozenset(),
        dropped_outputs: frozenset[str] = frozenset(),
    ) -> None:
        tensors = [*inputs.values(), *outputs.values()]
        self.columns = [
            Column(is_input, name, _TEXT if one.dtype.kind in "SU" else one.dtype, name not in dropped)
            for is_input, side, dropped in ((True, inputs, dropped_inputs), (False, outputs, dropped_outputs))
            for name, one in side.items()
        ]
        self.shapes = [one.shape for one in tensors]
        self.counts = [one.size if column.kept else 0 for column, one in zip(self.columns, tensors, strict=True)]
        self.size = sum(
            one.nbytes for column, one in zip(self.columns, tensors, strict=True) if column.kept and not column.is_text
        )
        self.plain = all(column.kept and not column.is_text for column in self.columns)

    def copied(self, tensors: Sequence[Tensor]) -> tuple[list[Copied], int]:
        """Return what a row keeps of its tensors, and the size in bytes. Texts are objects that never change."""
        size = self.size
        found: list[Copied] = []
        for column, tensor in zip(self.columns, tensors, strict=True):
            if not column.kept:
                found.append(b"")
            elif column.is_text:
                elements = tensor.reshape(-1).tolist()
                size += 4 * len(elements) + sum(map(len, elements))
                found.append(elements)
            else:
                found.append(tensor.tobytes())
        return found, size


# number, id, at, version, arm, error, latency_us: as in Record; the layout, what is kept of the tensors, and its size in bytes.
# A plain tuple, which is made in a tenth of the time of an object.
Row = tuple[int, str, float, int, str, str | None, int, Layout, list[Copied], int]
NUMBER: Final = 0
LAYOUT: Final = 7
SIZE: Final = 9
# Returns the values of a column as they may be written, or None to leave the tensor out. Takes an array, or a list of texts.
Masked = Callable[[Column, Any], Any]


def alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Split rows into groups that one file can hold: in a file, every tensor has one datatype."""
    groups: list[tuple[dict[tuple[bool, str], Any], list[Row]]] = []
    homes: dict[Layout, list[Row]] = {}
    for row in rows:
        layout = row[LAYOUT]
        if layout not in homes:
            own = {(column.is_input, column.name): column.dtype for column in layout.columns}
            fitting = (one for one in groups if all(one[0].get(key, dtype) == dtype for key, dtype in own.items()))
            home = next(fitting, None)
            if home is None:
                home = {}, []
                groups.append(home)
            home[0].update(own)
            homes[layout] = home[1]
        homes[layout].append(row)
    return [group for _, group in groups]


# -- written -------------------------------------------------------------------------------------------------------------
def encoded(
    records: Sequence[Record],
    dropped_inputs: frozenset[str] = frozenset(),
    dropped_outputs: frozenset[str] = frozenset(),
) -> bytes:
    """Return the Parquet file of records. dropped_...: the tensors of which only the shapes are written."""
    rows: list[Row] = []
    for one in records:
        layout = Layout(one.inputs, one.outputs, dropped_inputs, dropped_outputs)
        data, size = layout.copied([*one.inputs.values(), *one.outputs.values()])
        rows.append((one.number, one.id, one.at, one.version, one.arm, one.error, one.latency_us, layout, data, size))
    return encoded_rows(rows)


def encoded_rows(rows: Sequence[Row], masked: Masked = lambda column, values: values) -> bytes:
    """Return the Parquet file of rows that are `alike`."""
    core, parquet = _package()
    kinds = core.DataType
    fields: list[Any] = []
    arrays: list[Any] = []

    def add(name: str, array: Any, metadata: dict[str, str] | None = None) -> None:
        fields.append(core.Field(name, array.type, nullable=True, metadata=metadata))
        arrays.append(array)

    numbers, ids, at, versions, arms, errors, latencies, layouts, copies, _ = zip(*rows, strict=True)
    add("number", core.Array.from_numpy(np.array(numbers, np.int64)))
    add("id", core.Array(list(ids), kinds.string()))
    micros = core.Array.from_numpy((np.array(at) * 1e6).astype(np.int64))
    add("at", micros.cast(kinds.timestamp("us", tz="UTC")))
    add("version", core.Array.from_numpy(np.array(versions, np.int64)))
    add("arm", core.Array(list(arms), kinds.string()))
    add("error", core.Array(list(errors), kinds.string()))
    add("latency_us", core.Array.from_numpy(np.array(latencies, np.int64)))
    columns = _columns(layouts, copies)
    for column in sorted(columns, key=lambda column: (not column.is_input, column.name)):
        values = columns[column].values(core, column, masked)
        if values is not None:
            prefix, name = "in" if column.is_input else "out", column.name
            add(f"{prefix}.{name}", values, {"datatype": datatype_name(column.dtype)})
            add(f"{prefix}_shape.{name}", columns[column].shapes(core))
    schema = core.Schema(fields)
    batch = core.RecordBatch.from_arrays(arrays, schema=schema)
    target = BytesIO()
    reader = core.RecordBatchReader.from_batches(schema, [batch])
    parquet.write_parquet(reader, target, compression=_COMPRESSION, dictionary_enabled=False)
    return target.getvalue()


def _columns(layouts: Sequence[Layout], copies: Sequence[list[Copied]]) -> "dict[Column, _Column]":
    """Return what rows have of each tensor. Rows that follow each other with one layout are taken at once."""
    columns: dict[Column, _Column] = {}
    begin = 0
    for layout, run in itertools.groupby(zip(layouts, copies, strict=True), key=itemgetter(0)):
        data = [one for _, one in run]
        for column, shape, count, *parts in zip(layout.columns, layout.shapes, layout.counts, *data, strict=True):
            columns.setdefault(column, _Column()).add(begin, shape, count, parts)
        begin += len(data)
    for found in columns.values():
        found.skip_to(len(layouts))
    return columns


class _Column:
    """What the rows have of one tensor."""

    def __init__(self) -> None:
        self._parts: list[Copied] = []
        # Arrays, of which numpy takes the memory: a list is read element by element.
        self._counts = array("i")  # of the elements of each row
        self._missing = bytearray()  # for each row, whether it lacks the tensor
        self._dims = array("q")
        self._ndims = array("i")

    def skip_to(self, row: int) -> None:
        absent = row - len(self._missing)
        self._counts += array("i", (0,)) * absent
        self._missing += b"\1" * absent
        self._ndims += array("i", (0,)) * absent

    def add(self, row: int, shape: tuple[int, ...], count: int, parts: Sequence[Copied]) -> None:
        self.skip_to(row)
        number = len(parts)
        self._parts += parts
        self._counts += array("i", (count,)) * number
        self._missing += bytes(number)
        self._dims += array("q", shape) * number
        self._ndims += array("i", (len(shape),)) * number

    def values(self, core: Any, column: Column, masked: Masked) -> Any:
        """Return the Arrow array of the values, or None if the mask leaves the tensor out."""
        if column.is_text:
            elements: Any = list(itertools.chain.from_iterable(self._parts))
        else:
            elements = np.frombuffer(b"".join(self._parts), column.dtype)  # type: ignore[arg-type]
        elements = masked(column, elements)
        if elements is None:
            return None
        if column.is_text:
            flat = core.Array([element_bytes(one) for one in elements], core.DataType.binary())
        else:
            wide = datatype_name(column.dtype) in _WIDER
            flat = core.Array.from_numpy(elements.astype(np.float32) if wide else elements)
        missing = self._missing if column.kept else b"\1" * len(self._missing)
        return _list_array(core, flat, self._counts, missing)

    def shapes(self, core: Any) -> Any:
        return _list_array(core, core.Array.from_numpy(np.array(self._dims, np.int64)), self._ndims, self._missing)


def element_bytes(element: object) -> bytes:
    """Return an element of BYTES, which may be a text in a numpy array."""
    return element if isinstance(element, bytes) else str(element).encode()


def _list_array(core: Any, elements: Any, sizes: "array[int]", missing: bytes | bytearray) -> Any:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.frombuffer(sizes, np.int32), out=offsets[1:])
    kind = core.DataType.list(core.Field("item", elements.type, nullable=True))
    mask = core.Array.from_numpy(np.frombuffer(missing, bool))
    return core.list_array(core.Array.from_numpy(offsets), elements, type=kind, mask=mask)


# -- read ----------------------------------------------------------------------------------------------------------------
def read_rows(path: Path) -> Rows:
    """Return the rows of a file of a capture. Raises CaptureUnusable if the file is not whole, or the package is missing."""
    core, parquet = _package()
    try:
        table = parquet.read_parquet(path, batch_size=1 << 20).read_all()
        fields = [table.schema.field(number) for number in range(table.num_columns)]
        columns = {field.name: table.column(number).combine_chunks() for number, field in enumerate(fields)}
        return Rows(
            numbers=columns["number"].to_numpy(),
            ids=columns["id"].to_pylist(),
            at=columns["at"].cast(core.DataType.int64()).to_numpy() / 1e6,
            versions=columns["version"].to_numpy(),
            arms=columns["arm"].to_pylist(),
            errors=columns["error"].to_pylist(),
            latency_us=columns["latency_us"].to_numpy(),
            inputs=_read_tensors(core, fields, columns, "in"),
            outputs=_read_tensors(core, fields, columns, "out"),
        )
    except FileNotFoundError:
        raise CaptureUnusable(f"the file {path.name} of the capture is gone: the capture was deleted") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        # The package panics at some faults: a panic is no Exception.
        raise CaptureUnusable(f"the file {path.name} of the capture cannot be read ({type(error).__name__})") from None


def _read_tensors(core: Any, fields: Sequence[Any], columns: Mapping[str, Any], prefix: str) -> dict[str, TensorColumn]:
    found = {}
    for field in fields:
        side, _, name = field.name.partition(".")
        if side != prefix:
            continue
        values, shapes = columns[field.name], columns[f"{prefix}_shape.{name}"]
        datatype = field.metadata[b"datatype"].decode()
        flat = core.list_flatten(values)
        offsets = _offsets(core, values)
        found[name] = TensorColumn(
            datatype=datatype,
            values=_objects(flat.to_pylist()) if datatype == "BYTES" else flat.to_numpy(),
            offsets=offsets,
            shapes=core.list_flatten(shapes).to_numpy(),
            shape_offsets=_offsets(core, shapes),
            present=_present(values, offsets),
        )
    return found


def _offsets(core: Any, lists: Any) -> NDArray[np.int64]:
    offsets: NDArray[np.int64] = core.list_offsets(lists).to_numpy().astype(np.int64)
    offsets -= offsets[0]
    return offsets


def _objects(elements: list[bytes]) -> Tensor:
    found = np.empty(len(elements), object)
    found[:] = elements
    return found


def _present(lists: Any, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which lists are not null. A null list has no elements, so only empty lists are looked at one by one."""
    present = np.ones(len(lists), bool)
    if lists.null_count == len(lists):
        present[:] = False
    elif lists.null_count:
        for row in np.flatnonzero(offsets[1:] == offsets[:-1]):
            present[row] = lists[int(row)].as_py() is not None
    return present


def _package() -> tuple[Any, Any]:
    try:
        from arro3 import core, io
    except ImportError:
        raise CaptureUnusable(PACKAGE) from None
    return core, io


def has_package() -> bool:
    """Return whether the package that captures need is installed."""
    try:
        _package()
    except CaptureUnusable:
        return False
    return True
