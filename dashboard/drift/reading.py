"""Reads captured requests as rows of tensors: the reference of a monitor, and the windows that follow it.

Of a request with a batch only one row is taken: rows of one request depend on each other, and the tests suppose that they do
not. A hash of the request's number chooses it. Failed requests are left out.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from dashboard.drift.comparison import LEAST_ROWS
from dashboard.drift.features import MOST_ELEMENTS, Column, Table, TensorRow, add, columns_of
from dashboard.models import Capture, DriftMonitor, Model
from dashboard.releases.selectors import current_document
from dashboard.shared.exceptions import Conflict
from repository.core.capture_files import TensorColumn, read_rows
from repository.core.captures import CaptureFile, capture_files

MOST_REFERENCE = 10_000  # requests of a reference; of more, every second, fourth, ... is taken
_SHAPES = 200  # requests by whose shapes the columns are chosen
_CHECK_EACH = 500  # requests between two looks at whether the job was cancelled


@dataclass(frozen=True, slots=True)
class Request:
    """One captured request. at: in unix seconds. tensors: one row of each, "in.<name>" or "out.<name>"."""

    number: int
    at: float
    version: int
    tensors: Mapping[str, TensorRow]
    datatypes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reference:
    """The requests of a reference. last_at: when the last of them was answered; windows begin after it."""

    table: Table
    columns: list[Column]
    datatypes: dict[str, str]
    last_at: float


def requests_of(folder: Path, *, batched: bool, after: int = 0) -> Iterator[Request]:
    """Yield the answered requests of a capture whose number is over `after`, in their order.

    Raises CaptureUnusable if a file is damaged.
    """
    for file in files_after(folder, after):
        rows = read_rows(file.path)
        tensors = {f"in.{name}": column for name, column in rows.inputs.items()}
        tensors |= {f"out.{name}": column for name, column in rows.outputs.items()}
        datatypes = {name: column.datatype for name, column in tensors.items()}
        for place, number in enumerate(rows.numbers.tolist()):
            if number > after and rows.errors[place] is None:
                found = {name: _row(column, place, number, batched) for name, column in tensors.items()}
                there = {name: row for name, row in found.items() if row is not None}
                yield Request(number, float(rows.at[place]), int(rows.versions[place]), there, datatypes)


def files_after(folder: Path, after: int) -> list[CaptureFile]:
    """Return the files that may have requests whose number is over `after`."""
    files = capture_files(folder)
    later = [place for place, file in enumerate(files) if file.first <= after + 1]
    return files[later[-1] :] if later else files


def _row(column: TensorColumn, place: int, number: int, batched: bool) -> TensorRow | None:
    """Return one row of a tensor of a request; None if the request lacks the tensor, or it is empty."""
    found = column.tensor(place)
    if found is None or (batched and (not found.ndim or not found.shape[0])):
        return None
    row = found[zlib.crc32(number.to_bytes(8)) % found.shape[0]] if batched else found
    elements = row.reshape(-1)
    return TensorRow(tuple(row.shape), elements.tolist() if elements.size <= MOST_ELEMENTS else elements)


def is_batched(model: Model) -> bool:
    """Return whether the first dimension of the model's tensors is that of the batch."""
    return bool(current_document(model).message.max_batch_size)


def reference_of(monitor: DriftMonitor, capture: Capture, check: Callable[[], None]) -> Reference:
    """Read the requests of a reference. check: called now and then; it may raise to end the reading.

    Raises Conflict if they are too few for the tests. Raises CaptureUnusable if a file is damaged.
    """
    first: list[Request] = []
    table, columns = Table(), list[Column]()
    datatypes: dict[str, str] = {}
    stride, until, last_at = 1, math.inf, 0.0
    fitting = (one for one in requests_of(capture.folder, batched=is_batched(monitor.model)) if fits(monitor, one))
    for place, request in enumerate(fitting):
        if not place and monitor.days:
            until = request.at + timedelta(days=monitor.days).total_seconds()
        if request.at > until:
            break
        if not place % _CHECK_EACH:
            check()
        last_at = max(last_at, request.at)
        if place < _SHAPES:
            datatypes |= request.datatypes
            first.append(request)
            continue
        if not columns:
            columns = _begin(table, first, datatypes)
        if place % stride == 0:
            add(table, columns, request.tensors)
        if table.rows >= 2 * MOST_REFERENCE:
            table.halve()
            stride *= 2
    if not columns:
        columns = _begin(table, first, datatypes)
    if table.rows < LEAST_ROWS:
        raise Conflict(f"the reference has {table.rows} answered requests, and a comparison needs {LEAST_ROWS} or more")
    return Reference(table, columns, datatypes, until if monitor.days else last_at)


def _begin(table: Table, requests: list[Request], datatypes: Mapping[str, str]) -> list[Column]:
    columns = columns_of(datatypes, [request.tensors for request in requests])
    for request in requests:
        add(table, columns, request.tensors)
    return columns


def fits(monitor: DriftMonitor, request: Request) -> bool:
    """Return whether a monitor compares a request, by the version that answered it."""
    return monitor.version in (0, request.version)


def comparable(reference: Capture, current: Capture) -> Callable[[str], bool]:
    """Return a function that says whether a tensor, "in.<name>" or "out.<name>", was written alike in two captures.

    Words that a mask hashed differ between captures, and those that a mask dropped are missing.
    """

    def alike(tensor: str) -> bool:
        side, _, name = tensor.partition(".")
        kind: Literal["inputs", "outputs"] = "inputs" if side == "in" else "outputs"
        masks = [capture.wanted[kind].get(name) for capture in (reference, current)]
        hashed = any(mask is not None and mask.get("rule") == "hash" for mask in masks)
        return masks[0] == masks[1] and (reference.pk == current.pk or not hashed)

    return alike
