"""Compares two versions or releases: their differences, and how each of them served."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal, NamedTuple

from dashboard.catalog.selectors import version_get, versions
from dashboard.configuration.clients import TensorPair, tensor_pairs
from dashboard.configuration.signatures import served_signature
from dashboard.metrics.selectors import Span, Totals, metrics_totals
from dashboard.models import Model, ReleaseCheck, ReleaseSpan, Version
from dashboard.models.version import Signature
from dashboard.releases.selectors import (
    ReleaseLife,
    fitting_document,
    lives_of,
    release_get,
    releases,
    reporting_server,
    serving_release,
)
from dashboard.releases.signatures import answering_version, tensor_changes
from dashboard.servers.selectors import production_servers
from dashboard.shared.exceptions import Invalid
from repository.config.lines import unified

FIGURES_OF = timedelta(hours=24)
CHOICES = 50  # the most versions, and the most releases, that a page offers: the newest
_LOOKED_BACK = 200  # at most this many spans and checks are searched for one version
_KEY = re.compile(r"([vr])([1-9][0-9]{0,17})")
# Spans closer than this are one stretch: a release took over from another that served the same version.
_GAP = timedelta(seconds=1)


class Stretch(NamedTuple):
    """A time in which a version or release was live without a break. until: its end, or None while the stretch continues."""

    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Side:
    """A version or a release, with the facts that are compared.

    key: "v3" or "r7", as in an address. version: for a release, the version that answers requests that name no version, or
    None if the row of the version is gone. life: the life of a release, or None for a version. golden: the results of its last
    check with golden requests (name, version, passed, detail). figures: the totals of the last 24 hours; for a release, the
    totals of the time while it served.
    """

    key: str
    kind: Literal["version", "release"]
    number: int
    version: Version | None
    versions: list[int]
    life: ReleaseLife | None
    text: str
    signature: Signature
    live: list[Stretch]
    golden: list[dict[str, Any]]
    figures: Totals = field(default_factory=Totals)

    @property
    def label(self) -> str:
        return f"{self.kind.capitalize()} {self.number}"

    @property
    def is_live(self) -> bool:
        return bool(self.live) and self.live[0].until is None


class GoldenPair(NamedTuple):
    """The results of a golden request, or None for a side that did not run the request."""

    name: str
    a: dict[str, Any] | None
    b: dict[str, Any] | None

    @property
    def differs(self) -> bool:
        return bool(self.a and self.b and self.a["passed"] != self.b["passed"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison. changes: the effects on clients if b answered in place of a, as sentences without a full stop."""

    a: Side
    b: Side
    tensors: list[TensorPair]
    golden: list[GoldenPair]
    changes: list[str]
    diff: str

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.a, self.b

    @property
    def tried_versions(self) -> list[int]:
        """The two versions that can get the same input; [] if one version answers for both sides, or one is gone."""
        numbers = [side.version.number for side in (self.a, self.b) if side.version is not None]
        return numbers if len(set(numbers)) == 2 else []


class Choice(NamedTuple):
    key: str
    label: str


def comparison(model: Model, a: str, b: str) -> Comparison:
    """Compare two versions or releases of a model.

    a, b: "v3" for a version, "r7" for a release.
    Raises Invalid if a or b is another text. Raises NotFound if the model has no such version or release.
    """
    history = _History(model)
    one, other = (_side(history, name, key) for name, key in (("a", a), ("b", b)))
    one, other = _with_figures(model, one, other)
    before, after = (side.label.lower() for side in (one, other))
    return Comparison(
        a=one,
        b=other,
        tensors=tensor_pairs(one.signature, other.signature),
        golden=_golden_pairs(one.golden, other.golden),
        changes=tensor_changes(one.signature, other.signature),
        diff=unified(one.text, other.text, old_name=before, new_name=after),
    )


def chosen(model: Model, a: str, b: str) -> tuple[str, str]:
    """Return the two sides to compare: the named ones, with a useful default for a side that was not named.

    By default, the version that answers now is on the left, and the newest other version on the right. If there is only one
    version, the sides are the last two releases. A side is "" if there is no version or release left for it.
    """
    if a and b:
        return a, b
    default = answering_version(model)
    usual = [f"v{default.number}"] if default else []
    usual += [f"v{row.number}" for row in versions(model)[:2]]
    usual = list(dict.fromkeys(usual))
    if len(usual) < 2:
        now = serving_release(model)
        usual = [f"r{now.number}"] if now else []
        usual += [f"r{number}" for number in releases(model).values_list("number", flat=True)[:2]]
    left = a or next((key for key in usual if key != b), "")
    return left, b or next((key for key in usual if key != left), "")


def choices(model: Model, *keys: str) -> dict[str, list[Choice]]:
    """Return the choices under the headings of a select: the newest ones, and the ones that `keys` name."""
    found = {
        "Versions": [Choice(f"v{row.number}", row.label) for row in versions(model)[:CHOICES]],
        "Releases": [
            Choice(f"r{number}", f"Release {number}: {summary}" if summary else f"Release {number}")
            for number, summary in releases(model).values_list("number", "summary")[:CHOICES]
        ],
    }
    for group, letter, word in (("Versions", "v", "Version"), ("Releases", "r", "Release")):
        known = {choice.key for choice in found[group]}
        found[group] += [
            Choice(key, f"{word} {key[1:]}") for key in dict.fromkeys(keys) if key[:1] == letter and key not in known
        ]
    return found


# -- one side ----------------------------------------------------------------------------------------------------------
class _History:
    """The server's reports of a model's releases, the newest first, read once for both sides."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @cached_property
    def spans(self) -> list[ReleaseSpan]:
        rows = ReleaseSpan.objects.filter(model=self.model, server=reporting_server())
        return list(rows.select_related("release").defer("release__text")[:_LOOKED_BACK])

    @cached_property
    def checks(self) -> list[ReleaseCheck]:
        rows = ReleaseCheck.objects.filter(release__model=self.model, server=reporting_server())
        return list(rows.order_by("-started_at")[:_LOOKED_BACK])


def _side(history: _History, name: str, key: str) -> Side:
    match = _KEY.fullmatch(key)
    if match is None:
        raise Invalid(f"expected '{name}' as a version such as v3 or a release such as r7, not '{key[:40]}'")
    number = int(match[2])
    return _version(history, number) if match[1] == "v" else _release(history.model, number)


def _version(history: _History, number: int) -> Side:
    version = version_get(history.model, number)
    document = fitting_document(version)
    checked = ([row for row in _golden(check) if row.get("version") == number] for check in history.checks)
    return Side(
        key=f"v{number}",
        kind="version",
        number=number,
        version=version,
        versions=[number],
        life=None,
        text=document.text,
        signature=served_signature(document, version),
        live=_stretches(span for span in history.spans if number in span.release.versions),
        golden=next(filter(None, checked), []),
    )


def _release(model: Model, number: int) -> Side:
    release = release_get(model, number)
    life, document = lives_of([release])[0], release.document
    version = model.versions.filter(number=release.answers).first()
    return Side(
        key=f"r{number}",
        kind="release",
        number=number,
        version=version,
        versions=release.versions,
        life=life,
        text=document.text,
        signature=served_signature(document, version),
        live=_stretches(life.spans),
        golden=_golden(life.check) if life.check else [],
    )


def _stretches(spans: Iterable[ReleaseSpan]) -> list[Stretch]:
    """Return spans as stretches, both the newest first."""
    found: list[Stretch] = []
    for span in spans:
        if found and span.ended_at is not None and found[-1].since - span.ended_at <= _GAP:
            found[-1] = Stretch(span.started_at, found[-1].until)
        else:
            found.append(Stretch(span.started_at, span.ended_at))
    return found


def _golden(check: ReleaseCheck) -> list[dict[str, Any]]:
    return [dict(row) for step in check.steps if step["step"] == "golden" for row in step.get("checks", [])]


# -- both sides --------------------------------------------------------------------------------------------------------
def _with_figures(model: Model, *sides: Side) -> list[Side]:
    """Return the sides with their figures of the last 24 hours; for a release, of the time in which it served."""
    end = time.time()
    wanted = [(side.versions, _last_day(side, end)) for side in sides]
    totals = metrics_totals(servers=list(production_servers()), model_name=model.name, wanted=wanted)
    return [replace(side, figures=figures) for side, figures in zip(sides, totals, strict=True)]


def _last_day(side: Side, end: float) -> list[Span]:
    start = end - FIGURES_OF.total_seconds()
    if side.kind == "version":
        return [(start, end)]
    spans = ((since.timestamp(), until.timestamp() if until else end) for since, until in side.live)
    return [(max(since, start), until) for since, until in spans if until > start]


def _golden_pairs(a: Iterable[dict[str, Any]], b: Iterable[dict[str, Any]]) -> list[GoldenPair]:
    """Return the results of golden requests by name; if one version of a release failed a request, that result counts."""
    one, other = ({row["name"]: row for row in sorted(rows, key=lambda row: not row["passed"])} for rows in (a, b))
    return [GoldenPair(name, one.get(name), other.get(name)) for name in {**one, **other}]
