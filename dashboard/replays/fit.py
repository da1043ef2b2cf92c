"""Whether a capture can be replayed against a version: its masks, its requests, and the tensors of the version."""

from dashboard.configuration.signatures import served_signature
from dashboard.models import Capture, Version
from dashboard.models.upload_json import TensorRow
from dashboard.shared.exceptions import Conflict
from repository.config.document import Document
from repository.core.capture_files import Rows, TensorColumn, read_rows
from repository.core.captures import capture_files

_NAMED = 10


def refuse_unfit(capture: Capture, version: Version, document: Document) -> None:
    """Raise Conflict, with one sentence, if the requests of a capture cannot be sent to a version with this configuration.

    The first file is looked at. Requests of later files that do not fit fail one by one. Raises CaptureUnusable if the file is
    damaged.
    """
    if capture.running:
        raise Conflict("the capture is running: stop it, or wait for its end, then replay it")
    for name, mask in capture.wanted["inputs"].items():
        if mask["rule"] != "round":
            done = "dropped" if mask["rule"] == "drop" else "hashed"
            raise Conflict(
                f"the capture cannot be replayed: its mask {done} the input '{name}' (rule '{mask['rule']}')"
            )
    files = capture_files(capture.folder)
    if not files:
        raise Conflict("the capture has no requests: there is nothing to replay")
    rows, signature = read_rows(files[0].path), served_signature(document, version)
    _refuse_others("inputs", rows.inputs, signature.get("inputs", []), version.number)
    _refuse_others("outputs", rows.outputs, signature.get("outputs", []), version.number)
    _refuse_lacking(rows, signature.get("inputs", []), version.number)


def unlike_outputs(capture: Capture) -> list[str]:
    """Return the outputs that a mask changed, so that they cannot be compared."""
    return sorted(capture.wanted["outputs"])


def _refuse_others(side: str, columns: dict[str, TensorColumn], known: list[TensorRow], number: int) -> None:
    """Raise Conflict if a captured tensor is unknown to the version, has another datatype, or a shape that cannot fit."""
    rows = {row["name"]: row for row in known}
    for name, column in columns.items() if rows else ():
        one = f"{side[:-1]} '{name}'"
        if name not in rows:
            there = ", ".join(list(rows)[:_NAMED])
            raise Conflict(f"version {number} has no {one}, which the captured requests have; its {side} are {there}")
        row, shape = rows[name], _first_shape(column)
        if row["datatype"] != column.datatype and side == "inputs":
            raise Conflict(
                f"version {number} takes the {one} as {row['datatype']}, but it was captured as {column.datatype}"
            )
        if side == "inputs" and shape is not None and not _fits(shape, row["shape"]):
            raise Conflict(
                f"version {number} takes the {one} of shape {row['shape']}, but it was captured with {shape}"
            )


def _refuse_lacking(rows: Rows, known: list[TensorRow], number: int) -> None:
    for row in known:
        if row["name"] not in rows.inputs and not row.get("optional"):
            raise Conflict(f"version {number} needs the input '{row['name']}', which the captured requests lack")


def _first_shape(column: TensorColumn) -> list[int] | None:
    for place in range(len(column.present)):
        if column.present[place]:
            return [int(dim) for dim in column.shapes[column.shape_offsets[place] : column.shape_offsets[place + 1]]]
    return None


def _fits(shape: list[int], wanted: list[int]) -> bool:
    return len(shape) == len(wanted) and all(dim in (-1, own) for own, dim in zip(shape, wanted, strict=True))
