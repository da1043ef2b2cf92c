"""Reads and writes the Parquet files of captures (repository.core.captures), with the package arro3.

Rows are written and read as columns of numpy arrays, because a file may have 10,000 of them.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from repository.core.errors import CaptureUnusable

Tensor = NDArray[Any]

PACKAGE = "captures need the package arro3-io: pip install -r requirements/parquet.txt"
_COMPRESSION = "zstd(1)"
_NAMES = {
    "bool": "BOOL",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
_DTYPES: dict[str, Any] = {name: np.dtype(kind) for kind, name in _NAMES.items() if kind != "bfloat16"}
_DTYPES |= {"BF16": np.dtype(ml_dtypes.bfloat16), "BYTES": np.dtype(object)}
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


def alike(records: Sequence[Record]) -> list[list[Record]]:
    """Split records into runs that one file can hold: in a file, every tensor has one datatype."""
    runs: list[list[Record]] = []
    seen: dict[tuple[bool, str], Any] = {}
    for record in records:
        own = {(is_input, name): one.dtype for is_input, name, one in _tensors(record)}
        if not runs or any(seen.get(key, dtype) != dtype for key, dtype in own.items()):
            runs.append([])
            seen = {}
        seen.update(own)
        runs[-1].append(record)
    return runs


def _tensors(record: Record) -> list[tuple[bool, str, Tensor]]:
    inputs = [(True, name, one) for name, one in record.inputs.items()]
    return inputs + [(False, name, one) for name, one in record.outputs.items()]


# -- written -------------------------------------------------------------------------------------------------------------
def encoded(
    records: Sequence[Record],
    dropped_inputs: frozenset[str] = frozenset(),
    dropped_outputs: frozenset[str] = frozenset(),
) -> bytes:
    """Return the Parquet file of records that are `alike`. dropped_...: the tensors of which only the shapes are written."""
    core, parquet = _package()
    kinds = core.DataType
    columns: list[tuple[Any, Any]] = []

    def add(name: str, array: Any) -> None:
        columns.append((core.Field(name, array.type, nullable=True), array))

    add("number", core.Array.from_numpy(np.array([one.number for one in records], np.int64)))
    add("id", core.Array([one.id for one in records], kinds.string()))
    at = core.Array.from_numpy(np.array([int(one.at * 1e6) for one in records], np.int64))
    add("at", at.cast(kinds.timestamp("us", tz="UTC")))
    add("version", core.Array.from_numpy(np.array([one.version for one in records], np.int64)))
    add("arm", core.Array([one.arm for one in records], kinds.string()))
    add("error", core.Array([one.error for one in records], kinds.string()))
    add("latency_us", core.Array.from_numpy(np.array([one.latency_us for one in records], np.int64)))
    for prefix, sides, dropped in (
        ("in", [one.inputs for one in records], dropped_inputs),
        ("out", [one.outputs for one in records], dropped_outputs),
    ):
        for name in sorted({name for side in sides for name in side}):
            columns += _tensor_columns(core, prefix, name, [side.get(name) for side in sides], name in dropped)
    schema = core.Schema([field for field, _ in columns])
    batch = core.RecordBatch.from_arrays([array for _, array in columns], schema=schema)
    target = BytesIO()
    reader = core.RecordBatchReader.from_batches(schema, [batch])
    parquet.write_parquet(reader, target, compression=_COMPRESSION, dictionary_enabled=False)
    return target.getvalue()


def _tensor_columns(
    core: Any, prefix: str, name: str, tensors: Sequence[Tensor | None], dropped: bool
) -> list[tuple[Any, Any]]:
    there = [one for one in tensors if one is not None]
    datatype = datatype_name(there[0].dtype)
    missing = np.array([one is None for one in tensors])
    kept = [None] * len(tensors) if dropped else tensors
    values = _list_array(
        core,
        _elements(core, datatype, [one for one in kept if one is not None]),
        [0 if one is None else one.size for one in kept],
        missing | dropped,
    )
    dims = np.array([dim for one in there for dim in one.shape], np.int64)
    shapes = _list_array(
        core, core.Array.from_numpy(dims), [0 if one is None else one.ndim for one in tensors], missing
    )
    return [
        (core.Field(f"{prefix}.{name}", values.type, nullable=True, metadata={"datatype": datatype}), values),
        (core.Field(f"{prefix}_shape.{name}", shapes.type, nullable=True), shapes),
    ]


def _elements(core: Any, datatype: str, tensors: Sequence[Tensor]) -> Any:
    if datatype == "BYTES":
        flat = (element for one in tensors for element in one.reshape(-1))
        return core.Array([element_bytes(element) for element in flat], core.DataType.binary())
    kind = np.dtype(np.float32) if datatype in _WIDER else dtype_of(datatype)
    if not tensors:
        return core.Array.from_numpy(np.empty(0, kind))
    return core.Array.from_numpy(np.ascontiguousarray(np.concatenate([one.reshape(-1) for one in tensors]), kind))


def element_bytes(element: object) -> bytes:
    """Return an element of BYTES, which may be a text in a numpy array."""
    return element if isinstance(element, bytes) else str(element).encode()


def _list_array(core: Any, elements: Any, sizes: Sequence[int], missing: NDArray[np.bool_]) -> Any:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    item = core.Field("item", elements.type, nullable=True)
    kind = core.DataType.list(item)
    return core.list_array(core.Array.from_numpy(offsets), elements, type=kind, mask=core.Array.from_numpy(missing))


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
