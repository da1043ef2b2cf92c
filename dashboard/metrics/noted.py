"""The requests that stood out: stores what servers tell of them, thins it out, and finds those of a span of time.

In the last hour all are kept that servers told. Before, the MOST slowest and MOST failed requests of each version and hour are
kept, and the failures of an hour are one row for each cause. After KEPT_S they are removed.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from django.db import transaction
from django.db.models import Count, F, Max, Min, QuerySet, Sum, Window
from django.db.models.functions import Mod, RowNumber

from dashboard.models import FailureCount, NotedRequest, Server
from dashboard.models.noted import NotedDetails
from dashboard.servers.messages import NotedAnswer, NotedSpan, ToldCause, ToldRequest

KEPT_S = 7 * 24 * 3600
WHOLE_S = 3600  # for so long, all are kept
MOST = 5
SHOWN = 20
_HOUR = 3600
_AT_ONCE = 500
_LATEST = 1e11  # unix seconds; a later moment does not fit into a datetime
Row = TypeVar("Row", NotedRequest, FailureCount)
_SAME_CAUSE = ("server_id", "model_name", "version", "cause", "code", "reason")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which requests are looked for: those of a model between two moments (unix seconds); with a version or the name of a
    server, only its own."""

    model_name: str
    start: float
    end: float
    version: int | None = None
    server: str = ""

    def among(self, rows: "QuerySet[Row]") -> "QuerySet[Row]":
        """Return the rows of this model, version and server, of any time."""
        rows = rows.filter(model_name=self.model_name)
        rows = rows if self.version is None else rows.filter(version=self.version)
        return rows.filter(server__name=self.server) if self.server else rows


@dataclass(frozen=True, slots=True)
class FoundCause:
    """Failures of one cause in a span. first, last: in unix seconds. example: one of these requests, if one was kept."""

    cause: str
    code: str
    reason: str
    count: int
    first: float
    last: float
    versions: int
    example: NotedRequest | None

    @property
    def key(self) -> str:
        """A name of the cause for addresses, which do not quote what clients sent."""
        return hashlib.sha256("\n".join((self.cause, self.code, self.reason)).encode()).hexdigest()[:16]

    @property
    def first_at(self) -> datetime:
        return datetime.fromtimestamp(self.first, UTC)

    @property
    def last_at(self) -> datetime:
        return datetime.fromtimestamp(self.last, UTC)


class Told(NamedTuple):
    """What a server has told of requests that stood out."""

    server: Server
    answer: NotedAnswer


def noted_store_all(several: Sequence[Told]) -> None:
    """Store the spans that servers told. Spans that are stored already stay as they are."""
    requests: list[NotedRequest] = []
    counts: list[FailureCount] = []
    for server, answer in several:
        for span in answer["spans"]:
            if not (span["version"].isascii() and span["version"].isdigit() and len(span["version"]) < 19):
                continue
            key = f"{answer['instance'][:40]}-{span['number']}"
            for failed, rows in ((False, span["slow"]), (True, span["failed"])):
                requests += [_request(server, span, failed, row, f"{key}-{failed:d}-{n}") for n, row in enumerate(rows)]
            counts += [_count(server, span, row, f"{key}-{n}") for n, row in enumerate(span["causes"])]
    with transaction.atomic():
        NotedRequest.objects.bulk_create(requests, ignore_conflicts=True, batch_size=_AT_ONCE)
        FailureCount.objects.bulk_create(counts, ignore_conflicts=True, batch_size=_AT_ONCE)


def _count(server: Server, span: NotedSpan, row: ToldCause, key: str) -> FailureCount:
    return FailureCount(
        server=server,
        model_name=span["model"][:200],
        version=int(span["version"]),
        at=_second(span["start"]),
        cause=row["cause"][:500],
        code=row["code"][:32],
        reason=row["reason"][:32],
        count=max(0, row["count"]),
        first=_second(row["first"]),
        last=_second(row["last"]),
        key=key,
    )


def _second(moment: float) -> int:
    """Return a moment that the database and a page can take, whatever a server says."""
    return int(min(_LATEST, max(0.0, moment)))


def _request(server: Server, span: NotedSpan, failed: bool, row: ToldRequest, key: str) -> NotedRequest:
    details: NotedDetails = {
        "id": row["id"],
        "queue_us": row["queue_us"],
        "input_us": row["input_us"],
        "infer_us": row["infer_us"],
        "output_us": row["output_us"],
        "rows": row["rows"],
        "batch_size": row["batch_size"],
        "arm": row["arm"],
        "trace": row["trace"],
        "code": row["code"],
        "reason": row["reason"],
        "cause": row["cause"],
        "message": row["message"],
    }
    return NotedRequest(
        server=server,
        model_name=span["model"][:200],
        version=int(span["version"]),
        failed=failed,
        at=_second(row["at"]),
        duration_us=max(0, row["duration_us"]),
        details=details,
        key=key,
    )


def noted_prune(now: float) -> int:
    """Thin out what is older than WHOLE_S, remove what is older than KEPT_S, and return the number of removed rows."""
    gone = NotedRequest.objects.filter(at__lt=int(now) - KEPT_S).delete()[0]
    gone += FailureCount.objects.filter(at__lt=int(now) - KEPT_S).delete()[0]
    until = (int(now) - WHOLE_S) // _HOUR * _HOUR
    hour = F("at") - Mod(F("at"), _HOUR)
    older = NotedRequest.objects.filter(at__lt=until).annotate(hour=hour)
    apart = [F("server"), F("model_name"), F("version"), F("failed"), F("hour")]
    ranked = older.annotate(
        place=Window(RowNumber(), partition_by=apart, order_by=[F("duration_us").desc(), F("pk").asc()])
    )
    surplus = list(ranked.filter(place__gt=MOST).values_list("pk", flat=True))
    for start in range(0, len(surplus), _AT_ONCE):
        gone += NotedRequest.objects.filter(pk__in=surplus[start : start + _AT_ONCE]).delete()[0]
    return gone + _merge_counts(until)


def _merge_counts(until: int) -> int:
    """Make one row of the failures of each cause in an hour, and return how many rows fewer there are."""
    rows = FailureCount.objects.filter(at__lt=until).annotate(hour=F("at") - Mod(F("at"), _HOUR))
    groups = rows.values(*_SAME_CAUSE, "hour").annotate(
        rows=Count("pk"), kept=Min("pk"), total=Sum("count"), begin=Min("first"), end=Max("last")
    )
    gone = 0
    for group in list(groups.filter(rows__gt=1).order_by()):
        alike = FailureCount.objects.filter(
            **{name: group[name] for name in _SAME_CAUSE}, at__gte=group["hour"], at__lt=group["hour"] + _HOUR
        )
        with transaction.atomic():
            gone += alike.exclude(pk=group["kept"]).delete()[0]
            alike.filter(pk=group["kept"]).update(count=group["total"], first=group["begin"], last=group["end"])
    return gone


def noted_requests(
    wanted: Wanted, *, failed: bool, cause: FoundCause | None = None, limit: int = SHOWN
) -> list[NotedRequest]:
    """Return the slowest requests, or the newest failed ones, of one cause if it is given; at most `limit`."""
    rows = _within(wanted, failed)
    if cause is not None:
        rows = rows.filter(details__cause=cause.cause, details__code=cause.code, details__reason=cause.reason)
    order = ("-at", "-pk") if failed else ("-duration_us", "pk")
    return list(rows.select_related("server").order_by(*order)[:limit])


def _within(wanted: Wanted, failed: bool) -> QuerySet[NotedRequest]:
    rows = NotedRequest.objects.filter(failed=failed, at__gte=int(wanted.start), at__lte=int(wanted.end))
    return wanted.among(rows)


def failure_causes(wanted: Wanted) -> list[FoundCause]:
    """Return the causes of failures, the most frequent first; at most SHOWN.

    Failures before the last hour are counted by the hour: those of an hour that the span only touches count, too.
    """
    within = wanted.among(FailureCount.objects.filter(last__gte=wanted.start, first__lte=wanted.end))
    groups = within.values("cause", "code", "reason").annotate(
        total=Sum("count"), begin=Min("first"), end=Max("last"), versions=Count("version", distinct=True)
    )
    found = list(groups.order_by("-total", "cause")[:SHOWN])
    examples = _examples(_within(wanted, True).select_related("server").order_by("-at")[:_AT_ONCE]) if found else {}
    return [
        FoundCause(
            row["cause"], row["code"], row["reason"], row["total"], row["begin"], row["end"], row["versions"],
            examples.get((row["cause"], row["code"])),
        )
        for row in found
    ]  # fmt: skip


def _examples(rows: Iterable[NotedRequest]) -> dict[tuple[str, str], NotedRequest]:
    found: dict[tuple[str, str], NotedRequest] = {}
    for row in rows:
        found.setdefault((row.details["cause"], row.details["code"]), row)
    return found
