"""The activity list: acts of people, events of servers and models, and failed jobs, in order of time.

It merges three tables: audit entries, server events and failed jobs. Each row has an anchor such as "entry-7", under which the
activity page shows it.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Literal, overload

from django.db.models import F, Q, QuerySet

from dashboard.models import AuditEntry, Job, Model, Server, ServerEvent
from dashboard.shared.choices import EventKind, JobState
from dashboard.shared.exceptions import NotFound

Source = Literal["entry", "event", "job"]
SOURCES: tuple[Source, ...] = ("entry", "event", "job")  # rows with the same time are listed in this order
JOB_FAILED = "job.failed"
# Below: events that count as failures, events that charts mark, and (as prefixes) actions that may change serving.
FAILURES = (EventKind.CRASHED, EventKind.UNREACHABLE, EventKind.MODEL_FAILED, EventKind.BREACHED)
_MARKED = (*FAILURES, EventKind.STARTED, EventKind.RESTARTED, EventKind.STOPPED)
_CHANGES = (
    "version.",
    "config.",
    "model.",
    "release.",
    "alias",
    "drift.",
    "server.",
    "environment.",
    "deployment.",
    "rollout.",
    "import.",
    "text.",
)
_LOADS = ("model.load", "model.unload", "model.delete")
_NO_CHANGES = ("version.annotate", "model.describe", "rollout.forget", "rollout.keep_old")


@dataclass(frozen=True, slots=True)
class Happening:
    """One row of the activity list. kind: an audit entry's action, an EventKind, or JOB_FAILED. who: the name of a person or
    server, or "system". linked: whether a model of that name still exists."""

    source: Source
    pk: int
    at: datetime
    kind: str
    text: str
    who: str
    model_name: str = ""
    linked: bool = False
    failed: bool = False
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        return f"{self.source}-{self.pk}"

    @property
    def release(self) -> int | None:
        """The number of the release that this act made, or None if there is none or its model was deleted."""
        number = self.after.get("release")
        return number if self.linked and isinstance(number, int) else None


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions for rows. what: "" for all rows, "people", "servers", "failures", or a kind. until: an exclusive limit.
    text: words that must all occur in a row's text or model name."""

    what: str = ""
    who: str = ""
    model: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None


class Happenings(Sequence[Happening]):
    """A lazy list, the newest row first: a slice reads only its own rows."""

    def __init__(self, entries: QuerySet[AuditEntry], events: QuerySet[ServerEvent], jobs: QuerySet[Job]) -> None:
        self._rows: dict[Source, QuerySet[Any]] = {
            "entry": entries.annotate(moment=F("at")),
            "event": events.annotate(moment=F("at")),
            "job": jobs.annotate(moment=F("finished_at")),
        }

    def __len__(self) -> int:
        return sum(rows.count() for rows in self._rows.values())

    @overload
    def __getitem__(self, index: int) -> Happening: ...
    @overload
    def __getitem__(self, index: slice) -> list[Happening]: ...
    def __getitem__(self, index: int | slice) -> Happening | list[Happening]:
        if isinstance(index, int):
            return self[index : index + 1][0]
        start, end = index.start or 0, index.stop
        keys = heapq.merge(*(self._keys(source, end) for source in SOURCES))
        return _read([(source, pk) for _, place, _, pk in islice(keys, start, end) for source in [SOURCES[place]]])

    def newer_than(self, source: Source, pk: int) -> int:
        """Return the number of rows before this row in the list. Raises NotFound if the list does not contain the row."""
        row = self._rows[source].filter(pk=pk).values_list("moment", flat=True).first()
        if row is None:
            raise NotFound("there is no such entry; it may have been removed meanwhile")
        before = SOURCES[: SOURCES.index(source)]
        newer = sum(rows.filter(moment__gt=row).count() for rows in self._rows.values())
        same = sum(self._rows[one].filter(moment=row).count() for one in before)
        return newer + same + self._rows[source].filter(moment=row, pk__gt=pk).count()

    def _keys(self, source: Source, count: int | None) -> Iterator[tuple[float, int, int, int]]:
        """Yield the keys of one table in the order of the list: by moment, table and primary key."""
        rows = self._rows[source].order_by("-moment", "-pk").values_list("moment", "pk")[:count]
        return ((-moment.timestamp(), SOURCES.index(source), -pk, pk) for moment, pk in rows)


def happenings(wanted: Filter) -> Happenings:
    """Return the rows that match a filter."""
    entries, events, jobs = AuditEntry.objects.all(), ServerEvent.objects.all(), _failed_jobs()
    match wanted.what:
        case "":
            pass
        case "people":
            events, jobs = events.none(), jobs.none()
        case "servers":
            entries, jobs = entries.none(), jobs.none()
        case "failures":
            entries, events = entries.none(), events.filter(kind__in=FAILURES)
        case kind:
            entries, events = entries.filter(action=kind), events.filter(kind=kind)
            jobs = jobs if kind == JOB_FAILED else jobs.none()
    if wanted.who:
        entries, events = entries.filter(actor_name=wanted.who), events.filter(server__name=wanted.who)
        jobs = jobs.filter(created_by_name=wanted.who)
    if wanted.model:
        entries, events = entries.filter(model_name=wanted.model), events.filter(model_name=wanted.model)
        jobs = jobs.filter(model__name=wanted.model)
    for word in wanted.text.split():
        entries = entries.filter(Q(summary__icontains=word) | Q(model_name__icontains=word))
        events = events.filter(Q(message__icontains=word) | Q(model_name__icontains=word))
        jobs = jobs.filter(Q(title__icontains=word) | Q(error__icontains=word) | Q(model__name__icontains=word))
    if wanted.since:
        entries, events = entries.filter(at__gte=wanted.since), events.filter(at__gte=wanted.since)
        jobs = jobs.filter(finished_at__gte=wanted.since)
    if wanted.until:
        entries, events = entries.filter(at__lt=wanted.until), events.filter(at__lt=wanted.until)
        jobs = jobs.filter(finished_at__lt=wanted.until)
    return Happenings(entries, events, jobs)


def changes(*, model: Model | None = None) -> Happenings:
    """Return the rows that may have changed serving: releases, loads, configurations, crashes and failed loads.

    Tokens, accounts, notes, uploads and the parts of a larger act (such as an import) appear only in `happenings`. For one
    model, all its audit entries are included.
    """
    events = ServerEvent.objects.filter(kind__in=FAILURES)
    if model is None:
        entries = AuditEntry.objects.filter(_changing(), part=False).exclude(action__in=_NO_CHANGES)
    else:
        entries, events = AuditEntry.objects.filter(model_name=model.name), events.filter(model_name=model.name)
    return Happenings(entries, events, Job.objects.none())


def marked(*, servers: Sequence[Server], model_name: str, since: datetime, until: datetime) -> Happenings:
    """Return the rows that charts mark in addition to releases: loads of one model ("" for all), and events of
    the servers."""
    entries = AuditEntry.objects.filter(action__in=_LOADS, at__gte=since, at__lte=until)
    events = ServerEvent.objects.filter(server__in=servers, at__gte=since, at__lte=until, kind__in=_MARKED, process="")
    if model_name:
        entries, events = entries.filter(model_name=model_name), events.filter(model_name__in=("", model_name))
    return Happenings(entries, events, Job.objects.none())


def alters_serving(row: Happening) -> bool:
    """Return whether a row may have changed serving."""
    if row.source == "event":
        return True
    return row.kind.startswith(_CHANGES) and row.kind not in _NO_CHANGES and "continues" not in row.after


def _changing() -> Q:
    return Q(*[("action__startswith", prefix) for prefix in _CHANGES], _connector=Q.OR)


def _failed_jobs() -> QuerySet[Job]:
    return Job.objects.filter(state=JobState.FAILED, finished_at__isnull=False)


# -- rows ------------------------------------------------------------------------------------------------------------
def _read(keys: list[tuple[Source, int]]) -> list[Happening]:
    """Return the rows of these keys in the order of the keys, without rows that were deleted meanwhile."""
    wanted: dict[Source, list[int]] = {source: [pk for one, pk in keys if one == source] for source in SOURCES}
    found: dict[tuple[Source, int], Happening] = {}
    if wanted["entry"]:
        found |= _keyed(_of_entry(row) for row in AuditEntry.objects.filter(pk__in=wanted["entry"]))
    if wanted["event"]:
        events = list(ServerEvent.objects.filter(pk__in=wanted["event"]).select_related("server"))
        names = {event.model_name for event in events} - {""}
        known = set(Model.objects.filter(name__in=names).values_list("name", flat=True)) if names else set()
        found |= _keyed(_of_event(event, known) for event in events)
    if wanted["job"]:
        jobs = Job.objects.filter(pk__in=wanted["job"]).select_related("model").defer("log", "params")
        found |= _keyed(_of_job(job) for job in jobs)
    return [found[key] for key in keys if key in found]


def _keyed(rows: Iterable[Happening]) -> dict[tuple[Source, int], Happening]:
    return {(row.source, row.pk): row for row in rows}


def _of_entry(row: AuditEntry) -> Happening:
    linked = row.model_id is not None
    return Happening(
        "entry", row.pk, row.at, row.action, row.summary, row.actor_name, row.model_name, linked, False, row.before, row.after
    )  # fmt: skip


def _of_event(row: ServerEvent, known: set[str]) -> Happening:
    text = row.message or f"{row.get_kind_display()}{f' {row.model_name}' if row.model_name else ''}."
    linked, failed = row.model_name in known, row.kind in FAILURES
    return Happening("event", row.pk, row.at, row.kind, text, row.server.name, row.model_name, linked, failed)


def _of_job(row: Job) -> Happening:
    assert row.finished_at is not None
    name = row.model.name if row.model else ""
    text = f"{row.title or row.kind} failed: {row.error}"
    return Happening("job", row.pk, row.finished_at, JOB_FAILED, text, row.created_by_name, name, bool(name), True)
