"""What was live when, as a picture: a row for each version, a bar for each span in which a release served it.

A bar is as high as the version's share of the requests that name none. The releases of one rollout are one bar with its steps
inside, and a sentence that tells them in words.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.utils import timezone

from dashboard.models import Model, Release, ReleaseSpan
from dashboard.releases.selectors import told_by
from dashboard.releases.texts import answering

RANGES = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "1y": timedelta(days=365),
}
_BARS = 500  # spans, the newest ones: more than a picture can show
_NARROWEST = 0.25  # per cent of the width, so that what served for a moment can be seen and clicked
_TICKS = 4
_HEIGHT = 20  # of a row in pixels; a share of nothing is still a line
_LOWEST = 2


@dataclass(frozen=True, slots=True)
class Part:
    """A time in which a version had the same share. x, width: per cent of the picture's width. share: per cent of requests."""

    x: float
    width: float
    share: float

    @property
    def height(self) -> float:
        return round(max(_LOWEST, (_HEIGHT - 4) * self.share / 100), 1)

    @property
    def y(self) -> float:
        return _HEIGHT - 2 - self.height


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in which one release served a version, or all releases of one rollout did. release: the last of them. rollout:
    the name of that rollout, "" for none. x, width: per cent of the picture's width. parts: the oldest first."""

    release: int
    rollout: str
    began: datetime
    ended: datetime | None  # None: it serves now
    x: float
    width: float
    parts: list[Part]

    @property
    def shares(self) -> str:
        """Return the shares in the order they came, each once: "5 %, 25 %, 100 %"."""
        found = [part.share for part in self.parts]
        changed = [share for place, share in enumerate(found) if place == 0 or share != found[place - 1]]
        return ", ".join(f"{share:g} %" for share in changed)

    @property
    def words(self) -> str:
        """Return what it shows, with its times; a template would take much longer for so many."""
        who = f"Rollout {self.rollout}" if self.rollout else f"Release {self.release}"
        ended = _in_words(self.ended) if self.ended else "now"
        return f"{who}: {self.shares} of requests, {_in_words(self.began)} to {ended}"


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    at: datetime


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One version, or a model on another server by its address."""

    name: str
    version: int | None
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class Timeline:
    """rows: by version, the highest first; other servers after them. since, until: what the picture shows. shared: whether a
    version had less than all requests, so that heights are to be explained."""

    since: datetime
    until: datetime
    rows: list[TimelineRow]
    ticks: list[Tick]
    shared: bool


def timeline(model: Model, wanted: str = "", now: datetime | None = None) -> tuple[Timeline, str]:
    """Return what the bundled server served of a model in a range of time, and the name of that range.

    wanted: a name of RANGES; by any other the shortest range that holds what happened in the last month.
    """
    until = now or timezone.now()
    name = wanted if wanted in RANGES else _fitting(model, until)
    since = until - RANGES[name]
    bars: dict[str, list[Bar]] = defaultdict(list)
    for span in sorted(_spans(model, since), key=lambda one: one.started_at):
        for who, share in _shares(span.release).items():
            _add(bars[who], _bar(span, share, since, until))
    rows = [TimelineRow(who, int(who) if who.isdecimal() else None, found) for who, found in bars.items()]
    rows.sort(key=lambda row: (row.version is None, -(row.version or 0), row.name))
    step = (until - since) / _TICKS
    ticks = [Tick(100 * place / _TICKS, since + place * step) for place in range(_TICKS + 1)]
    shared = any(part.share < 100 for row in rows for bar in row.bars for part in bar.parts)
    return Timeline(since, until, rows, ticks, shared), name


def _shares(release: Release) -> dict[str, float]:
    """Return per cent of the requests without a version by what answers them; what is loaded beside it has 0."""
    if release.traffic:
        return {**{str(number): 0.0 for number in release.versions}, **release.traffic}
    answers = answering(release.versions, release.aliases)
    return {str(number): 100.0 if number == answers else 0.0 for number in release.versions}


def _bar(span: ReleaseSpan, share: float, since: datetime, until: datetime) -> Bar:
    began, ended = max(span.started_at, since), min(span.ended_at or until, until)
    width = max(_share(ended, since, until) - _share(began, since, until), _NARROWEST)
    x = min(_share(began, since, until), 100 - width)
    part = Part(round(x, 3), round(width, 3), share)
    rollout = span.release.rollout
    name = rollout.name if rollout is not None else ""
    return Bar(span.release.number, name, span.started_at, span.ended_at, part.x, part.width, [part])


def _add(bars: list[Bar], bar: Bar) -> None:
    """Put a bar behind the others: into the last one, where both are steps of one rollout."""
    last = bars[-1] if bars else None
    if last is None or not bar.rollout or last.rollout != bar.rollout:
        bars.append(bar)
        return
    # Where a step is too narrow for the picture, it is drawn wider than it was: the next one begins no earlier than it did.
    width = max(round(bar.x + bar.width - last.x, 3), last.width)
    bars[-1] = replace(last, release=bar.release, ended=bar.ended, width=width, parts=[*last.parts, *bar.parts])


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


def _in_words(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%-d %b %H:%M}"


def _share(moment: datetime, since: datetime, until: datetime) -> float:
    return 100 * ((moment - since) / (until - since))
