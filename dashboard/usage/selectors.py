"""Reads who uses what: a month by model, token, person, group or day, and how much of each quota is used today."""

import calendar
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Max, Q, QuerySet, Sum

from dashboard.access.authorisation import Actor, Right
from dashboard.accounts.tokens import groups_of
from dashboard.models import ApiToken, Quota, UsageDay, UsageFile
from dashboard.shared.exceptions import Invalid
from repository.core.usage_log import COUNTERS

BY = ("model", "token", "person", "group", "day")
STALE_AFTER_S = 15.0
NO_PERSON = "no person"  # the dashboard itself, for example
_FIRST = (2020, 1)


class Month(NamedTuple):
    """first, last: the days that it consists of."""

    first: date
    last: date

    @property
    def name(self) -> str:
        return self.first.strftime("%Y-%m")


@dataclass
class Used:
    """What was used, under one name."""

    name: str
    requests: int = 0
    failed: int = 0
    refused: int = 0
    rows: int = 0
    compute_ns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, sums: "Sums") -> None:
        for counter in COUNTERS:
            setattr(self, counter, getattr(self, counter) + (sums[f"sum_{counter}"] or 0))

    @property
    def compute_s(self) -> float:
        return self.compute_ns / 1e9

    @property
    def price(self) -> float | None:
        """Return the price of the compute time, or None if no price is set."""
        return price_of(self.compute_ns)


class QuotaUse(NamedTuple):
    """A limit of a quota, and what is used of it today; None for a rate. share: in per cent."""

    limit: str
    allowed: float
    used: float | None
    share: float


def price_of(compute_ns: int) -> float | None:
    price: float = settings.DEVICE_HOUR_PRICE
    return round(compute_ns / 3.6e12 * price, 9) if price else None


def utc_today() -> date:
    return datetime.now(UTC).date()


def month_of(text: str) -> Month:
    """Return the month that a text such as "2026-11" names; "" means the present one. Raises Invalid for any other text."""
    today = utc_today()
    year, month = today.year, today.month
    if text:
        parts = text.split("-")
        if len(text) != 7 or len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise Invalid.at("month", "expected a month such as 2026-11")
        year, month = int(parts[0]), int(parts[1])
        if not 1 <= month <= 12 or not _FIRST <= (year, month) <= (2999, 12):
            raise Invalid.at("month", "expected a month such as 2026-11")
    return Month(date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1]))


def kept_from() -> date:
    """Return the first day whose usage is kept: that of the month in which the oldest kept day is, so that months are whole."""
    return (utc_today() - timedelta(days=settings.USAGE_DAYS)).replace(day=1)


def day_ends() -> datetime:
    """Return when daily limits begin anew."""
    return datetime.combine(utc_today() + timedelta(days=1), datetime.min.time(), UTC)


def months_known(actor: Actor) -> list[str]:
    """Return the months for which there are rows, and the present one, the newest first."""
    found = {day.strftime("%Y-%m") for day in usage_rows(actor).dates("day", "month")}
    return sorted(found | {utc_today().strftime("%Y-%m")}, reverse=True)


def usage_rows(actor: Actor) -> QuerySet[UsageDay]:
    """Return the rows that an actor may see: administrators see everybody's, other people their own."""
    rows = UsageDay.objects.all()
    return rows if actor.may(Right.ADMINISTER) else rows.filter(person=actor.name).exclude(person="")


def month_rows(actor: Actor, month: Month) -> QuerySet[UsageDay]:
    """Return the rows of a month, one for each day, token and model."""
    rows = usage_rows(actor).filter(day__range=(month.first, month.last))
    return rows.order_by("day", "person", "token_name", "token_hash", "model_name")


def usage_by(rows: QuerySet[UsageDay], by: str) -> list[Used]:
    """Return what was used by each model, token, person, group or day; days in order, others with most compute time first.

    The use of a person in several groups counts for each of them. Raises Invalid for another `by`.
    """
    if by not in BY:
        raise Invalid.at("by", f"expected one of {', '.join(BY)}")
    column, names = _COLUMNS[by]
    found: dict[str, Used] = {}
    for sums in rows.order_by().values(column).annotate(last_name=Max("token_name"), **_SUMS):
        for key, name in names(sums):
            found.setdefault(key, Used(name)).add(sums)
    if by == "day":
        return [found[key] for key in sorted(found)]
    return sorted(found.values(), key=lambda used: (-used.compute_ns, -used.requests, used.name))


def usage_total(rows: QuerySet[UsageDay]) -> Used:
    total = Used("total")
    total.add(rows.order_by().aggregate(**_SUMS))
    return total


Sums = Mapping[str, Any]  # the values of one row of the query
_SUMS = {f"sum_{counter}": Sum(counter) for counter in COUNTERS}


def _token(sums: Sums) -> list[tuple[str, str]]:
    return [(sums["token_hash"], sums["last_name"] or f"{sums['token_hash'][:12]}…")]


def _person(sums: Sums) -> list[tuple[str, str]]:
    return [(sums["person"], sums["person"] or NO_PERSON)]


def _groups(sums: Sums) -> list[tuple[str, str]]:
    return [(f"group {name}", name) for name in sums["groups"]] or [("", "no group")]


# What to show use by -> the column that the query groups by, and a function from its row to keys with names.
_COLUMNS: dict[str, tuple[str, Callable[[Sums], list[tuple[str, str]]]]] = {
    "model": ("model_name", lambda sums: [(sums["model_name"], sums["model_name"])]),
    "token": ("token_hash", _token),
    "person": ("person", _person),
    "group": ("groups", _groups),
    "day": ("day", lambda sums: [(str(sums["day"]), str(sums["day"]))]),
}


def quotas(actor: Actor) -> list[Quota]:
    """Return the quotas that an actor may see: administrators see all, other people those that limit them."""
    found = Quota.objects.select_related("token__user", "user", "group")
    if not actor.may(Right.ADMINISTER):
        if actor.user is None:
            return []
        names = groups_of(actor.user)
        found = found.filter(Q(token__user=actor.user) | Q(user=actor.user) | Q(group__name__in=names))
    return list(found)


def quota_use(quota: Quota) -> list[QuotaUse]:
    """Return the limits of a quota, with what is used of them today."""
    rows = UsageDay.objects.filter(day=utc_today())
    if quota.token_id:
        rows = rows.filter(token_hash=ApiToken.objects.values("hash").filter(pk=quota.token_id)[:1])
    elif quota.user_id:
        rows = rows.filter(person=quota.name)
    sums = _sums(rows, quota.name if quota.group_id else "")
    used = {
        "requests_per_day": sums["requests"] + sums["failed"],
        "rows_per_day": sums["rows"],
        "compute_seconds_per_day": sums["compute_ns"] / 1e9,
    }
    return [
        QuotaUse(limit, allowed, used.get(limit), min(100.0, 100 * used.get(limit, 0) / allowed))
        for limit, allowed in quota.limits()
    ]


def _sums(rows: QuerySet[UsageDay], group: str) -> dict[str, int]:
    names = ("requests", "failed", "rows", "compute_ns")
    if group:  # JSON lists cannot be searched in every database
        of_group = [row for row in rows if group in row.groups]
        return {name: sum(getattr(row, name) for row in of_group) for name in names}
    return {name: found or 0 for name, found in rows.aggregate(**{name: Sum(name) for name in names}).items()}


def read_until() -> tuple[datetime | None, bool]:
    """Return when the newest record was written that is in the database, and whether the log has a newer one for long."""
    newest = UsageFile.objects.order_by("-day").first()
    if newest is None:
        return None, False
    path = settings.USAGE_LOG / f"{newest.day}.log"
    try:
        changed = path.stat().st_mtime
    except OSError:
        changed = 0.0
    behind = changed - newest.written_at > STALE_AFTER_S and time.time() - changed > STALE_AFTER_S
    return datetime.fromtimestamp(newest.written_at, UTC), behind
