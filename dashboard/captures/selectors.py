"""Reads captures, and decides who may read what clients sent."""

import math
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import CLIENT_DATA, Actor, require
from dashboard.models import Capture, Model
from dashboard.shared.exceptions import Forbidden, NotFound
from dashboard.shared.repository_errors import repository_errors
from repository.core.capture_files import TensorColumn, read_rows
from repository.core.captures import CaptureFile, capture_files
from repository.core.json_types import JsonObject

SHOWN = 20  # requests on the page
_SHOWN_ELEMENTS = 8


def captures(model: Model) -> QuerySet[Capture]:
    return model.captures.select_related("model")


def capture_get(model: Model, pk: UUID | str) -> Capture:
    try:
        return captures(model).get(pk=pk)
    except (Capture.DoesNotExist, ValidationError):
        raise NotFound(f"model '{model.name}' has no such capture; it may have been deleted") from None


def may_read(actor: Actor, model: Model) -> bool:
    """Return whether the actor may see what clients sent to a model: all who may see such data, or only the model's readers."""
    if actor.system:
        return True
    if not actor.may(CLIENT_DATA):
        return False
    readers = {one.pk for one in model.capture_readers.all()}
    return not readers or (actor.user is not None and actor.user.pk in readers)


def require_reader(actor: Actor, model: Model) -> None:
    """Raise Forbidden unless the actor may read the captures of a model."""
    require(actor, CLIENT_DATA)
    if not may_read(actor, model):
        raise Forbidden(f"only the people whom an administrator named may read the captures of '{model.name}'")


@repository_errors()
def capture_files_get(capture: Capture) -> list[CaptureFile]:
    """Return the whole files of a capture, the oldest first. Raises Conflict if its folder cannot be read."""
    return capture_files(capture.folder)


def capture_file(capture: Capture, first: int, actor: Actor) -> CaptureFile:
    """Return one file of a capture, and record that the actor reads it. first: the number of its first request."""
    require_reader(actor, capture.model)
    found = next((one for one in capture_files_get(capture) if one.first == first), None)
    if found is None:
        raise NotFound(f"the capture has no file that begins with request {first}")
    reading_record(capture, actor, f"Read {found.rows} captured requests to {capture.model.name}")
    return found


def newest_requests(capture: Capture, actor: Actor, count: int = SHOWN) -> list[JsonObject]:
    """Return the newest requests in short words, and record that the actor reads them. Raises CaptureUnusable."""
    require_reader(actor, capture.model)
    files = capture_files(capture.folder)
    if not files:
        return []
    reading_record(capture, actor, f"Looked at captured requests to {capture.model.name}")
    rows = read_rows(files[-1].path)
    return [
        {
            "number": int(rows.numbers[row]),
            "id": rows.ids[row],
            "at": float(rows.at[row]),
            "version": int(rows.versions[row]),
            "arm": rows.arms[row],
            "error": rows.errors[row],
            "latency_us": int(rows.latency_us[row]),
            "inputs": {name: tensor_words(column, row) for name, column in rows.inputs.items()},
            "outputs": {name: tensor_words(column, row) for name, column in rows.outputs.items()},
        }
        for row in range(max(0, len(rows) - count), len(rows))[::-1]
    ]


def tensor_words(column: TensorColumn, row: int) -> str:
    """Return the datatype, the shape and the first elements of a tensor in words."""
    shape = [int(dim) for dim in column.shapes[column.shape_offsets[row] : column.shape_offsets[row + 1]]]
    head = f"{column.datatype} {shape}"
    if not column.present[row]:
        return f"{head}: not kept" if shape or column.shape_offsets[row] < column.shape_offsets[row + 1] else "none"
    elements = column.values[column.offsets[row] : column.offsets[row + 1]]
    shown = ", ".join(_element(one) for one in elements[:_SHOWN_ELEMENTS])
    return f"{head}: {shown}{', …' if len(elements) > _SHOWN_ELEMENTS else ''}"


def _element(value: object) -> str:
    if isinstance(value, bytes):
        text = value[:200].decode(errors="backslashreplace")
        return repr(text if len(text) <= 60 else f"{text[:59]}…")
    number = float(value)  # type: ignore[arg-type]
    return f"{number:.6g}" if math.isfinite(number) else str(number)


def reading_record(capture: Capture, actor: Actor, summary: str) -> None:
    """Record a reading in the audit trail, before the actor sees anything."""
    with transaction.atomic():
        audit_record(
            actor=actor, action="capture.read", model=capture.model, summary=summary, after={"capture": str(capture.pk)}
        )
