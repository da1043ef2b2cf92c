"""Compares another version or release with the version that answers now: its tensors, and the requests that it would refuse."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dashboard.configuration.signatures import served_signature
from dashboard.models import Model, Release, Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.releases.selectors import serving_release, wanted_release
from dashboard.releases.signatures import answering_version, refused_requests, tensor_changes


class TensorPair(NamedTuple):
    """A tensor in two signatures. a, b: its row in each signature, or None if the signature lacks it."""

    kind: Literal["input", "output"]
    name: str
    a: TensorRow | None
    b: TensorRow | None

    @property
    def differs(self) -> bool:
        return self.a != self.b


@dataclass(frozen=True, slots=True)
class ForClients:
    """The effects on clients that name no version, if another version or release answered them.

    now: the version that answers now. then: the name of the other version or release, "version 3" or "release 2".
    refused: the reasons why requests that `now` answers would be refused, as clauses. changes: the changed tensors, as
    sentences without a full stop. pairs: the tensors of both.
    """

    now: Version
    then: str
    refused: list[str]
    changes: list[str]
    pairs: list[TensorPair]

    @property
    def labels(self) -> tuple[str, str]:
        return f"Version {self.now.number}, which answers now", self.then.capitalize()


def for_clients(model: Model, number: int, after: Signature) -> ForClients | None:
    """Return the effects if version `number`, with these tensors, answered. None if it answers now, or no version answers."""
    now = answering_version(model)
    if now is None or now.number == number:
        return None
    return _compared(now, f"version {number}", now.signature, after)


def for_clients_of_release(model: Model, release: Release) -> ForClients | None:
    """Return the effects of going back to a release, or None if no version answers now.

    The release may have another configuration of the same version, with other tensors."""
    served = serving_release(model) or wanted_release(model)
    if served is None:
        return None
    numbers = served.answers, release.answers
    now, then = map({one.number: one for one in model.versions.filter(number__in=numbers)}.get, numbers)
    if now is None:
        return None
    before, after = served_signature(served.document, now), served_signature(release.document, then)
    return _compared(now, f"release {release.number}", before, after)


def _compared(now: Version, then: str, before: Signature, after: Signature) -> ForClients:
    pairs = tensor_pairs(before, after)
    refused = [*refused_requests(before, after), *_refused_shapes(pairs)]
    return ForClients(now, then, refused, tensor_changes(before, after), pairs)


def _refused_shapes(pairs: list[TensorPair]) -> Iterator[str]:
    """Yield a clause for each input that would refuse shapes that it accepts now."""
    for pair in pairs:
        if pair.kind == "input" and pair.a and pair.b and pair.a["datatype"] == pair.b["datatype"] != "":
            was, now = pair.a["shape"], pair.b["shape"]
            if len(was) != len(now) or any(size not in (-1, old) for old, size in zip(was, now, strict=True)):
                yield f"its input '{pair.name}' has shape {now}, where it was {was}"


def tensor_pairs(a: Signature, b: Signature) -> list[TensorPair]:
    """Return the tensors of both signatures, each once: inputs before outputs, and tensors of `a` before those only in `b`."""
    found = []
    sides: tuple[tuple[Literal["input", "output"], list[TensorRow], list[TensorRow]], ...] = (
        ("input", a.get("inputs", []), b.get("inputs", [])),
        ("output", a.get("outputs", []), b.get("outputs", [])),
    )
    for kind, left, right in sides:
        one, other = ({row["name"]: row for row in rows} for rows in (left, right))
        found += [TensorPair(kind, name, one.get(name), other.get(name)) for name in {**one, **other}]
    return found
