"""The marks on charts: what began, changed or failed at a moment. Each kind of mark is a line of SOURCES.

The browser draws a kind with the sign of static/js/charts/marks.js.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict
from urllib.parse import urlencode

from django.db.models import Q
from django.urls import reverse

from dashboard.access.happenings import Happening, marked
from dashboard.models import Alert, ReleaseSpan, Rollout, Server
from dashboard.releases.selectors import releases_begun
from dashboard.shared.choices import RolloutState, Severity

MOST_OF_A_SOURCE = 500


class Marker(TypedDict):
    """An event on a chart. at: in Unix seconds. address: the page with the details."""

    at: float
    kind: str  # release, rollout, alert, choices.EventKind, or the action of an audit entry
    text: str
    model: str
    bad: bool  # whether something failed
    address: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What a chart shows: servers, a model ("" for all), and a span of time."""

    servers: Sequence[Server]
    model_name: str
    since: datetime
    until: datetime


def _happenings(shown: Shown) -> Iterable[Marker]:
    """Yield the restarts and failures of the servers, and loads."""
    rows = marked(servers=shown.servers, model_name=shown.model_name, since=shown.since, until=shown.until)
    for row in rows[:MOST_OF_A_SOURCE]:
        yield _of_happening(row, shown.model_name)


def _of_happening(row: Happening, model_name: str) -> Marker:
    address = reverse("activity_at", args=[row.source, row.pk])
    return {
        "at": row.at.timestamp(),
        "kind": row.kind,
        "text": row.text,
        "model": row.model_name,
        "bad": row.failed,
        "address": f"{address}?{urlencode({'model': model_name})}" if model_name and row.model_name else address,
    }


def _releases(shown: Shown) -> Iterable[Marker]:
    """Yield the releases that began to serve; where several servers began one in turn, the first of them."""
    spans = releases_begun(servers=shown.servers, since=shown.since, until=shown.until, model_name=shown.model_name)
    before: dict[int, int] = {}  # model -> the release that began last
    for span in reversed(spans[:MOST_OF_A_SOURCE]):
        if before.get(span.model_id) != span.release_id:
            before[span.model_id] = span.release_id
            yield _of_release(span)


def _of_release(span: ReleaseSpan) -> Marker:
    number, name = span.release.number, span.model.name
    return {
        "at": span.started_at.timestamp(),
        "kind": "release",
        "text": f"Release {number} of {name} serves: {span.release.summary or span.release.get_kind_display()}",
        "model": name,
        "bad": False,
        "address": reverse("release", args=[name, number]),
    }


def _rollouts(shown: Shown) -> Iterable[Marker]:
    """Yield the beginnings and ends of rollouts."""
    within = (shown.since, shown.until)
    rows = Rollout.objects.filter(Q(started_at__range=within) | Q(ended_at__range=within)).select_related("model")
    if shown.model_name:
        rows = rows.filter(model__name=shown.model_name)
    for row in rows[:MOST_OF_A_SOURCE]:
        if shown.since <= row.started_at <= shown.until:
            yield _of_rollout(row, row.started_at, "begins", bad=False)
        if row.ended_at is not None and shown.since <= row.ended_at <= shown.until:
            failed = row.state in (RolloutState.ABORTED, RolloutState.ROLLED_BACK)
            yield _of_rollout(row, row.ended_at, f"ends: {row.get_state_display()}", bad=failed)


def _of_rollout(row: Rollout, at: datetime, words: str, *, bad: bool) -> Marker:
    return {
        "at": at.timestamp(),
        "kind": "rollout",
        "text": f"{row.get_kind_display()} {row.name} of {row.model.name} {words}",
        "model": row.model.name,
        "bad": bad,
        "address": reverse("model_rollout", args=[row.model.name, row.name]),
    }


def _alerts(shown: Shown) -> Iterable[Marker]:
    """Yield the alerts that fired, without those about other servers."""
    rows = Alert.objects.filter(fired_at__range=(shown.since, shown.until))
    if shown.model_name:
        rows = rows.filter(model_name=shown.model_name)
    names = {"", *(server.name for server in shown.servers)}
    for row in rows[:MOST_OF_A_SOURCE]:
        if row.fired_at is not None and row.server_name in names:
            yield {
                "at": row.fired_at.timestamp(),
                "kind": "alert",
                "text": row.title,
                "model": row.model_name,
                "bad": row.severity == Severity.CRITICAL,
                "address": reverse("alert", args=[row.pk]),
            }


SOURCES: tuple[Callable[[Shown], Iterable[Marker]], ...] = (_happenings, _releases, _rollouts, _alerts)


def metrics_markers(*, servers: Sequence[Server], start: float, end: float, model_name: str = "") -> list[Marker]:
    """Return the marks from `start` to `end` (Unix seconds), the oldest first. With a model's name, those of other models are
    left out."""
    shown = Shown(servers, model_name, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))
    return sorted((marker for source in SOURCES for marker in source(shown)), key=lambda marker: marker["at"])
