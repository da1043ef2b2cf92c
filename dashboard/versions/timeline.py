"""What was live when, as a picture: a row for each version, a bar for each span in which a release served it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from dashboard.models import Model, Release, ReleaseSpan
from dashboard.releases.selectors import told_by
from dashboard.releases.signatures import answering_number

RANGES = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "1y": timedelta(days=365),
}
_BARS = 2000  # the newest ones: more than a picture can show
_NARROWEST = 0.25  # per cent of the width, so that what served for a moment can be seen and clicked
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in which one release served a version. x, width: per cent of the picture's width. share: of the requests that name
    no version, from 0 to 1. rollout: the one that the release was a step of, "" for none."""

    release: int
    began: datetime
    ended: datetime | None  # None: it serves now
    x: float
    width: float
    share: float
    rollout: str


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Timeline:
    """rows: by version, the highest first. since, until: what the picture shows."""

    since: datetime
    until: datetime
    rows: list[tuple[int, list[Bar]]]
    ticks: list[Tick]


def timeline(model: Model, wanted: str = "", now: datetime | None = None) -> tuple[Timeline, str]:
    """Return what the bundled server served of a model in a range of time, and the name of that range.

    wanted: a name of RANGES; by any other the shortest range that holds what happened in the last month.
    """
    until = now or timezone.now()
    name = wanted if wanted in RANGES else _fitting(model, until)
    since = until - RANGES[name]
    rows: dict[int, list[Bar]] = defaultdict(list)
    for span in _spans(model, since):
        began, ended = max(span.started_at, since), min(span.ended_at or until, until)
        x, width = _share(began, since, until), _share(ended, since, until) - _share(began, since, until)
        width = max(width, _NARROWEST)
        release, rollout = span.release, span.release.rollout
        for version in release.versions:
            rows[version].append(
                Bar(
                    release=release.number,
                    began=span.started_at,
                    ended=span.ended_at,
                    x=round(min(x, 100 - width), 3),
                    width=round(width, 3),
                    share=_answers(release, version),
                    rollout=rollout.name if rollout is not None else "",
                )
            )
    step = (until - since) / _TICKS
    ticks = [Tick(100 * place / _TICKS, since + place * step) for place in range(_TICKS + 1)]
    return Timeline(since, until, sorted(rows.items(), reverse=True), ticks), name


def _answers(release: Release, version: int) -> float:
    """Return which share of the requests without a version a release gives to one."""
    if release.traffic:
        return release.traffic.get(str(version), 0.0) / 100
    return float(answering_number(release) == version)


def _spans(model: Model, since: datetime) -> Iterable[ReleaseSpan]:
    rows = ReleaseSpan.objects.filter(model=model, server=told_by())
    late = rows.filter(ended_at=None) | rows.filter(ended_at__gte=since)
    return late.select_related("release__rollout").defer("release__text", "release__rollout__plan")[:_BARS]


def _fitting(model: Model, until: datetime) -> str:
    first = (
        ReleaseSpan.objects.filter(model=model, server=told_by(), started_at__gte=until - RANGES["30d"])
        .order_by("started_at")
        .values_list("started_at", flat=True)
        .first()
    )
    age = until - (first or until)
    return next((name for name, length in RANGES.items() if age <= length), "30d")


def _share(moment: datetime, since: datetime, until: datetime) -> float:
    return 100 * ((moment - since) / (until - since))
