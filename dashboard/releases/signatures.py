"""Compares the tensors of another version with the tensors of the version that answers now, to find the changes for clients."""

from collections.abc import Iterable, Iterator

from dashboard.models import Model, Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.releases.selectors import serving_release, wanted_release


def answering_version(model: Model) -> Version | None:
    """Return the version that answers requests that name no version, by the serving release, else by the wanted one."""
    release = serving_release(model) or wanted_release(model)
    return model.versions.filter(number=release.answers if release is not None else 0).first()


def tensor_changes(before: Signature, after: Signature) -> list[str]:
    """Return the changes for clients if a model with other tensors answers, as sentences without a full stop.

    Inputs or outputs that are unknown count as unchanged.
    """
    found: list[str] = []
    for side, consequence in (("inputs", "requests have to send it"), ("outputs", "answers have it, too")):
        then, now = _by_name(before, side), _by_name(after, side)
        if then and now:
            found += _changes(side.removesuffix("s"), then, now, consequence)
    return found


def refused_requests(before: Signature, after: Signature) -> list[str]:
    """Return the reasons why a model with the tensors `after` refuses requests that fit a model with `before`, as clauses.

    Unknown inputs or outputs give no reason. Shapes are not compared, because the server checks them.
    """
    found: list[str] = []
    then, now = _by_name(before, "inputs"), _by_name(after, "inputs")
    if then and now:
        found += [f"it has no input '{name}'" for name in then if name not in now]
        found += [
            f"it needs the input '{name}' too" for name in now if name not in then and not now[name].get("optional")
        ]
        found += [
            f"its input '{name}' is {now[name]['datatype']}, not {row['datatype']}"
            for name, row in then.items()
            if name in now
            and _has_datatype(row)
            and _has_datatype(now[name])
            and row["datatype"] != now[name]["datatype"]
        ]
    then, now = _by_name(before, "outputs"), _by_name(after, "outputs")
    if then and now:
        found += [f"it has no output '{name}'" for name in then if name not in now]
    return found


def _by_name(signature: Signature, side: str) -> dict[str, TensorRow]:
    rows: Iterable[TensorRow] = signature.get(side, [])  # type: ignore[assignment]  # either side is a list of them
    return {row["name"]: row for row in rows}


def _changes(kind: str, before: dict[str, TensorRow], after: dict[str, TensorRow], consequence: str) -> Iterator[str]:
    for name, row in before.items():
        if name not in after:
            gone = "requests that send it are refused" if kind == "input" else "requests that ask for it are refused"
            yield f"{kind} '{name}' is gone: {gone}"
        elif _has_datatype(row) and _has_datatype(after[name]) and _in_words(after[name]) != _in_words(row):
            yield f"{kind} '{name}' is {_in_words(after[name])}, where it was {_in_words(row)}"
    for name in after.keys() - before.keys():
        what = f", {_in_words(after[name])}" if _has_datatype(after[name]) else ""
        yield f"{kind} '{name}' is new{what}: {consequence}"


def _has_datatype(row: TensorRow) -> bool:
    """Return whether the datatype is known: the file of a Python model may declare only names."""
    return bool(row["datatype"])


def _in_words(row: TensorRow) -> str:
    return f"{row['datatype']} {row['shape']}"
