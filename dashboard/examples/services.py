"""Writes of examples: creating, changing and deleting them. Their requests are checked and normalised first."""

import math
from collections.abc import Iterable
from typing import Any

import orjson
from django.db import transaction
from django.db.models import Sum

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.catalog.traits import traits_of
from dashboard.models import Example, Model
from dashboard.models.upload_json import TensorRow
from dashboard.releases.storage import on_disk
from dashboard.shared.choices import ExampleSource, VersionState
from dashboard.shared.exceptions import Conflict, Invalid, NotFound, TooLarge
from repository.core.errors import InvalidConfig, InvalidExample
from repository.core.golden import (
    DEFAULT_TOLERANCE,
    MAX_BYTES,
    MAX_BYTES_TOGETHER,
    MAX_REQUESTS,
    read_expected,
    read_request,
    request_json,
)
from repository.core.json_types import JsonObject
from repository.core.tensors import Tensor, tensor_json

MAX_NAME = 100
CHANGEABLE = ("name", "request", "expected", "golden", "absolute", "relative")
_DECISIVE = {"request", "expected", "absolute", "relative"}  # a change of these fields makes an outcome obsolete


def example_create(
    *,
    model: Model,
    actor: Actor,
    name: str,
    request: object,
    expected: object = None,
    golden: bool = False,
    absolute: float = DEFAULT_TOLERANCE.absolute,
    relative: float = DEFAULT_TOLERANCE.relative,
    source: str = ExampleSource.TYPED,
) -> Example:
    """Keep a request under a name that the model has no example of yet.

    request, expected: in the JSON of repository.core.golden. golden: run it before a release serves.
    Raises Forbidden if the actor may not operate. Raises Invalid, with the name of the field, if a field is wrong. Raises
    Conflict if the name is taken, or the model has MAX_REQUESTS examples. Raises TooLarge if this example, or all examples of
    the model together, would be too large.
    """
    require(actor, Right.OPERATE)
    given = {"name": name, "request": request, "expected": expected, "golden": golden}
    example = Example(model=model, source=source, created_by=actor.user, created_by_name=actor.name)
    _put(example, {**given, "absolute": absolute, "relative": relative})
    with transaction.atomic():
        model = Model.locked(model.pk)
        _refuse_taken(example)
        _refuse_excess(example)
        example.save()
        audit_record(
            actor=actor,
            action="example.create",
            model=model,
            summary=f"Kept example “{example.name}” of {model.name}" + (" as a golden request" if golden else ""),
            after=_audited(example),
        )
    return example


def example_change(*, example: Example, actor: Actor, **changes: Any) -> Example:
    """Change the named fields of an example (CHANGEABLE). It raises the errors of `example_create`."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        model, example = _locked(example)
        before = _audited(example)
        _put(example, {**{key: getattr(example, key) for key in CHANGEABLE}, **changes})
        if changes.keys() & _DECISIVE:
            example.outcome = None
        _refuse_taken(example)
        _refuse_excess(example)
        example.save()
        audit_record(
            actor=actor,
            action="example.change",
            model=model,
            summary=_change_summary(example, before),
            before=before,
            after=_audited(example),
        )
    return example


def example_delete(*, example: Example, actor: Actor) -> None:
    """Delete an example. Raises Forbidden if the actor may not operate."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        model, example = _locked(example)
        audit_record(
            actor=actor,
            action="example.delete",
            model=model,
            summary=f"Deleted example “{example.name}” of {model.name}",
            before=_audited(example),
        )
        example.delete()


def _locked(example: Example) -> tuple[Model, Example]:
    """Return the current row of an example, and its model, locked.

    Raises NotFound if the example or the model was deleted meanwhile.
    """
    model = Model.locked(example.model_id)
    found = Example.objects.select_related("model").filter(pk=example.pk).first()
    if found is None:
        raise NotFound(f"example '{example.name}' of '{model.name}' was deleted meanwhile")
    return model, found


# -- checks --------------------------------------------------------------------------------------------------------------
def _put(example: Example, given: dict[str, Any]) -> None:
    """Check the given values, normalise them, and set them on the row."""
    example.name = _name(given["name"])
    request = _at("request", read_request, given["request"])
    expected = None if given["expected"] is None else _at("expected", read_expected, given["expected"])
    example.request = request_json(request)
    example.expected = None if expected is None else {"outputs": [tensor_json(tensor) for tensor in expected]}
    example.golden = bool(given["golden"])
    for field in ("absolute", "relative"):
        setattr(example, field, _tolerance(field, given[field]))
    example.signature = {"inputs": tensor_rows(request.inputs), "outputs": tensor_rows(expected or [])}
    example.size_bytes = len(orjson.dumps([example.request, example.expected]))
    if example.size_bytes > MAX_BYTES:
        raise TooLarge(
            f"example '{example.name}' has {example.size_bytes} bytes as JSON; at most {MAX_BYTES} can be kept. "
            "Keep one with smaller tensors"
        )
    _refuse_unfit(example, request.inputs, expected)


def _at(field: str, read: Any, given: object) -> Any:
    """Return the reader's result; its InvalidExample becomes an Invalid with a problem at the field."""
    try:
        return read(given)
    except InvalidExample as error:
        raise Invalid.at(field, error.message) from None


def _name(given: object) -> str:
    name = given.strip() if isinstance(given, str) else ""
    if not name or len(name) > MAX_NAME or "/" in name or not name.isprintable():
        raise Invalid.at(
            "name", f"expected a name of 1 to {MAX_NAME} characters without a slash, such as 'a clear seven'"
        )
    return name


def _tolerance(field: str, given: object) -> float:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not math.isfinite(given) or given < 0:  # type: ignore[arg-type, operator]  # it is a number
        raise Invalid.at(field, f"expected the {field} tolerance as a number from 0, such as 0.001")
    return float(given)  # type: ignore[arg-type]  # as above


def _refuse_unfit(example: Example, inputs: list[Tensor], expected: list[Tensor] | None) -> None:
    """Refuse tensors that the model does not have, and golden requests of models that one request cannot test."""
    document = on_disk(example.model.name).document
    newest = example.model.versions.filter(state=VersionState.PUBLISHED).order_by("-number").first()
    traits = traits_of(document, newest is not None and newest.streams)
    if example.golden and expected is None:
        raise Invalid.at("expected", "a golden request needs expected outputs")
    if example.golden and (traits.decoupled or traits.sequence):
        kind = "answers a request with a stream" if traits.decoupled else "keeps state from one request to the next"
        raise Invalid.at("golden", f"model '{example.model.name}' {kind}, so a single request of it cannot be golden")
    try:
        config = document.message
    except InvalidConfig:
        return
    for field, kind, named, given in (
        ("request", "input", [row.name for row in config.input], inputs),
        ("expected", "output", [row.name for row in config.output], expected or []),
    ):
        unknown = next((tensor.name for tensor in given if named and tensor.name not in named), None)
        if unknown is not None:
            there = ", ".join(f"'{name}'" for name in named)
            raise Invalid.at(field, f"model '{example.model.name}' has no {kind} '{unknown}'; it has {there}")


def _refuse_taken(example: Example) -> None:
    if example.model.examples.filter(name=example.name).exclude(pk=example.pk).exists():
        raise Conflict(
            f"model '{example.model.name}' has an example named '{example.name}' already; choose another name"
        )


def _refuse_excess(example: Example) -> None:
    others = example.model.examples.exclude(pk=example.pk)
    if others.count() >= MAX_REQUESTS:
        raise Conflict(f"model '{example.model.name}' has {MAX_REQUESTS} examples already; delete one first")
    together = example.size_bytes + (others.aggregate(Sum("size_bytes"))["size_bytes__sum"] or 0)
    if together > MAX_BYTES_TOGETHER:
        raise TooLarge(
            f"the examples of '{example.model.name}' would have {together} bytes together; at most {MAX_BYTES_TOGETHER} "
            "can be kept. Delete one first"
        )


def tensor_rows(tensors: Iterable[Tensor]) -> list[TensorRow]:
    """Return tensors without their elements."""
    return [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in tensors]


# -- the audit trail -----------------------------------------------------------------------------------------------------
def _audited(example: Example) -> JsonObject:
    """Return an example for the audit trail, without its tensors, which are too large."""
    return {
        "name": example.name,
        "inputs": example.inputs,
        "golden": example.golden,
        "expected": example.expected is not None,
        "tolerance": {"absolute": example.absolute, "relative": example.relative},
        "source": str(example.source),
    }


def _change_summary(example: Example, before: JsonObject) -> str:
    name = f"example “{example.name}” of {example.model.name}"
    if before["name"] != example.name:
        return f"Renamed example “{before['name']}” of {example.model.name} to “{example.name}”"
    if before["golden"] != example.golden:
        return f"Made {name} a golden request" if example.golden else f"Made {name} an ordinary example again"
    return f"Changed {name}"
