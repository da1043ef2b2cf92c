"""Examples of a model, golden requests too. Examples that a client sent are the data of clients, and no text."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dashboard.access.authorisation import Actor
from dashboard.examples.services import example_change, example_create, example_delete
from dashboard.models import Example
from dashboard.shared.choices import ExampleSource
from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.text.kinds import Change, Kind, Secrets
from dashboard.text.shapes import ANYTHING, Record, Table
from repository.core.errors import InvalidExample
from repository.core.golden import DEFAULT_TOLERANCE, read_expected, read_request, request_json
from repository.core.tensors import tensor_json

_EXAMPLE = {
    "expected": None,
    "golden": False,
    "absolute": DEFAULT_TOLERANCE.absolute,
    "relative": DEFAULT_TOLERANCE.relative,
}


def _examples() -> Mapping[str, Any]:
    found: dict[str, dict[str, object]] = defaultdict(dict)
    for example in Example.objects.exclude(source=ExampleSource.TRAFFIC).select_related("model"):
        found[example.model.name][example.name] = {name: getattr(example, name) for name in ("request", *_EXAMPLE)}
    return dict(found)


def _normal(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry whose request and expected answer are as the table keeps them. Raises Invalid if they are wrong."""
    try:
        found = {**entry, "request": request_json(read_request(entry["request"]))}
        if "expected" in entry:
            found["expected"] = {"outputs": [tensor_json(tensor) for tensor in read_expected(entry["expected"])]}
        return found
    except InvalidExample as error:
        raise Invalid(error.message) from None


def _write(change: Change, actor: Actor, kept: Secrets) -> None:
    model = change.model
    if change.before is None:
        example_create(model=model, actor=actor, name=change.key, **change.after)
        return
    example = Example.objects.filter(model=model, name=change.key).exclude(source=ExampleSource.TRAFFIC).first()
    if example is None:
        raise NotFound(f"example '{change.key}' was deleted meanwhile")
    if change.after is None:
        example_delete(example=example, actor=actor)
    else:
        wanted = {**_EXAMPLE, **change.after}
        changed = {name: wanted[name] for name in wanted if change.changed(name, _EXAMPLE.get(name))}
        example_change(example=example, actor=actor, **changed)


EXAMPLES = Kind(
    name="examples",
    one="example",
    file="examples.yaml",
    shape=Table(
        Record(
            {"request": ANYTHING, "expected": ANYTHING, "golden": bool, "absolute": float, "relative": float}, _EXAMPLE
        )
    ),
    read=_examples,
    write=_write,
    of_model=True,
    entries=True,
    sparse=True,
    normal=_normal,
)
