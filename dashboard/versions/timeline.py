"""The timeline of a model as a picture: a row for each version, a bar for each span in which a release served it.

The height of a bar is the version's share of the requests that name no version. The releases of one rollout are one bar with
its steps inside, and a sentence that lists them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from dashboard.models import Model, ReleaseSpan
from dashboard.releases.selectors import reporting_server
from repository.config.document import default_version

RANGES = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "1y": timedelta(days=365),
}
_BARS = 500  # how many spans are read, the newest ones; a picture cannot show as many
_NARROWEST = 0.25  # the least width of a bar in per cent, so that a short span can be seen and clicked
_TICKS = 4
_HEIGHT = 20  # the height of a row in pixels; a share of 0 is still a line
_LOWEST = 2


class _Span(NamedTuple):
    """A span with the fields of its release that are drawn. rollout: the name of its rollout, or None."""

    began: datetime
    ended: datetime | None
    release: int
    versions: list[int]
    aliases: dict[str, int]
    traffic: dict[str, float]
    rollout: str | None


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
    """A span in which one release, or all releases of one rollout, served a version. release: the last of them. rollout: the
    name of the rollout, "" for none. address: the address of its page. x, width: per cent of the picture's width. parts: the
    oldest first."""

    release: int
    rollout: str
    address: str
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
        """Return the label of the bar, with its times."""
        who = f"Rollout {self.rollout}" if self.rollout else f"Release {self.release}"
        ended = _in_words(self.ended) if self.ended else "now"
        return f"{who}: {self.shares} of requests, {_in_words(self.began)} to {ended}"

    @property
    def drawn(self) -> str:
        """Return the bar as SVG, with a link to its release or rollout."""
        looks = "" if self.ended else ' class="now"'
        corners = ' rx="3"' if len(self.parts) == 1 else ""
        parts = "".join(
            f'<rect x="{part.x}%" width="{part.width}%" y="{part.y}" height="{part.height}"{corners}{looks}></rect>'
            for part in self.parts
        )
        around = f'<rect x="{self.x}%" width="{self.width}%" y="2" height="{_HEIGHT - 4}" rx="3" class="around"></rect>'
        return f'<a href="{escape(self.address)}" tabindex="-1">{around}{parts}<title>{escape(self.words)}</title></a>'


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

    @property
    def drawn(self) -> SafeString:
        """Return its bars as SVG; a template would take ten times as long for so many."""
        return mark_safe("".join(bar.drawn for bar in self.bars))  # the texts of each bar are escaped


@dataclass(frozen=True, slots=True)
class Timeline:
    """rows: the versions, the highest first, and then other servers. since, until: the range of the picture. shared: whether a
    version had less than 100 % of the requests at some time; the page then explains what the height of a bar means."""

    since: datetime
    until: datetime
    rows: list[TimelineRow]
    ticks: list[Tick]
    shared: bool


def timeline(model: Model, wanted: str = "", now: datetime | None = None) -> tuple[Timeline, str]:
    """Return a model's timeline on the bundled server, and the name of the time range that it shows.

    wanted: a name in RANGES; any other text means the shortest range that contains the changes of the last month.
    """
    until = now or timezone.now()
    name = wanted if wanted in RANGES else _fitting(model, until)
    since = until - RANGES[name]
    bars: dict[str, list[Bar]] = defaultdict(list)
    pages = reverse("model_releases", args=[model.name]), reverse("model_rollouts", args=[model.name])
    for span in sorted(_spans(model, since), key=attrgetter("began")):
        for who, share in _shares(span).items():
            _add(bars[who], _bar(pages, span, share, since, until))
    rows = [TimelineRow(who, int(who) if who.isdecimal() else None, found) for who, found in bars.items()]
    rows.sort(key=lambda row: (row.version is None, -(row.version or 0), row.name))
    step = (until - since) / _TICKS
    ticks = [Tick(100 * place / _TICKS, since + place * step) for place in range(_TICKS + 1)]
    shared = any(part.share < 100 for row in rows for bar in row.bars for part in bar.parts)
    return Timeline(since, until, rows, ticks, shared), name


def _shares(span: _Span) -> dict[str, float]:
    """Return each arm's share of the requests that name no version, in per cent; versions that are only loaded have 0."""
    if span.traffic:
        return {**{str(number): 0.0 for number in span.versions}, **span.traffic}
    answers = default_version(span.versions, span.aliases)
    return {str(number): 100.0 if number == answers else 0.0 for number in span.versions}


def _bar(pages: tuple[str, str], span: _Span, share: float, since: datetime, until: datetime) -> Bar:
    began, ended = max(span.began, since), min(span.ended or until, until)
    width = max(_share(ended, since, until) - _share(began, since, until), _NARROWEST)
    x = min(_share(began, since, until), 100 - width)
    part, rollout = Part(round(x, 3), round(width, 3), share), span.rollout or ""
    address = f"{pages[bool(rollout)]}{rollout or span.release}/"
    return Bar(span.release, rollout, address, span.began, span.ended, part.x, part.width, [part])


def _add(bars: list[Bar], bar: Bar) -> None:
    """Append a bar, or join it to the last one if both are steps of one rollout."""
    last = bars[-1] if bars else None
    if last is None or not bar.rollout or last.rollout != bar.rollout:
        bars.append(bar)
        return
    # A step that is too narrow for the picture is drawn wider, so that the next one begins at its own time or later.
    width = max(round(bar.x + bar.width - last.x, 3), last.width)
    bars[-1] = replace(last, release=bar.release, ended=bar.ended, width=width, parts=[*last.parts, *bar.parts])


def _spans(model: Model, since: datetime) -> Iterable[_Span]:
    rows = ReleaseSpan.objects.filter(model=model, server=reporting_server())
    late = rows.filter(ended_at=None) | rows.filter(ended_at__gte=since)
    release = (f"release__{name}" for name in ("number", "versions", "aliases", "traffic", "rollout__name"))
    return map(_Span._make, late.values_list("started_at", "ended_at", *release)[:_BARS])


def _fitting(model: Model, until: datetime) -> str:
    first = (
        ReleaseSpan.objects.filter(model=model, server=reporting_server(), started_at__gte=until - RANGES["30d"])
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
