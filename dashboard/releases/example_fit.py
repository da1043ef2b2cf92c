"""Checks whether a model's examples fit the tensors of a version, before somebody makes that version live."""

from collections.abc import Iterator

from dashboard.models import Example, Model
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature


def unfit_examples(model: Model, signature: Signature) -> dict[str, str]:
    """Return the examples that do not fit these tensors, each with the reason; see `misfit`."""
    found = {row.name: misfit(row, signature) for row in model.examples.defer("request", "expected")}
    return {name: why for name, why in found.items() if why}


def misfit(example: Example, signature: Signature) -> str:
    """Return the reason why a version with these tensors cannot answer an example as expected; "" if it can.

    The reason is a clause without a full stop. An unknown datatype or shape fits.
    """
    kept = example.signature
    problems = [
        *_missing(kept.get("inputs", []), signature.get("inputs", [])),
        *_contradictions("input", kept.get("inputs", []), signature.get("inputs", [])),
        *_contradictions("output", kept.get("outputs", []), signature.get("outputs", [])),
    ]
    return next(iter(problems), "")


def _missing(sent: list[TensorRow], wanted: list[TensorRow]) -> Iterator[str]:
    names = {row["name"] for row in sent}
    for row in wanted:
        if sent and row["name"] not in names and not row.get("optional"):
            yield f"it does not send input '{row['name']}'"


def _contradictions(kind: str, kept: list[TensorRow], now: list[TensorRow]) -> Iterator[str]:
    known = {row["name"]: row for row in now}
    for row in kept if known else []:
        other = known.get(row["name"])
        if other is None:
            yield f"there is no {kind} '{row['name']}'"
        elif other["datatype"] and not _fits(row, other):
            there = f"{other['datatype']} {other['shape']}"
            yield f"{kind} '{row['name']}' is {there}, and {row['datatype']} {row['shape']} in the example"


def _fits(row: TensorRow, other: TensorRow) -> bool:
    sizes = zip(row["shape"], other["shape"], strict=False)
    same_rank = len(row["shape"]) == len(other["shape"])
    return row["datatype"] == other["datatype"] and same_rank and all(want in (-1, size) for size, want in sizes)
