"""Estimates the requests that clients sent during outages, because no server counted them."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from dashboard.metrics.samples import FINEST, decode
from dashboard.metrics.selectors import metrics_rows
from dashboard.models import Server
from dashboard.servers.selectors import Outage, answers, outages
from dashboard.templatetags.units import count, duration

_BEFORE_S = 60  # the rate of requests in this time before an outage is assumed during the outage
_NAMED = 3  # so many servers are named, and the others counted
_SOON = timedelta(minutes=5)  # after an outage of this length, clients may have given up


def outage_sentence(servers: Sequence[Server], seconds: int = 900, model_name: str = "") -> str:
    """Return a sentence: how long servers did not answer in the last seconds, which ones still do not and which ones serve, and
    how many requests (of a model or all) failed.

    Return "" if all of them answered. The requests are estimated from the minute before, because no server counted them.
    """
    now = timezone.now()
    since = now - timedelta(seconds=seconds)
    found = outages(servers, since, now)
    spans = [(server, one) for server in servers for one in found[server.pk]]
    if not spans:
        return ""
    down: dict[str, float] = defaultdict(float)
    for server, one in spans:
        down[server.name] += (_end(one, now) - max(one.start, since)).total_seconds()
    first, *others = sorted(down, key=lambda name: (-down[name], name))
    each = _listed(
        [f"{first} did not answer for {duration(down[first])}", *(f"{one} for {duration(down[one])}" for one in others)]
    )
    still = {server.name for server, one in spans if one.end is None}
    return f"{each} of the last {duration(seconds)}{_now(servers, still)}: {_lost(spans, since, now, model_name)}"


def _now(servers: Sequence[Server], still: set[str]) -> str:
    """Return the part of the sentence about which servers do not answer now; "" if all do."""
    if not still:
        return ""
    away = f"; {_listed(sorted(still))} still {'do' if still.difference([min(still)]) else 'does'} not answer"
    serving = sorted(server.name for server in servers if server.name not in still and answers(server))
    return f"{away}, {_listed(serving)} {'serve' if serving[1:] else 'serves'}" if serving else away


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    *several, last = names if len(names) <= _NAMED else [*names[:_NAMED], f"{len(names) - _NAMED} more"]
    return f"{', '.join(several)} and {last}" if several else last


def _lost(spans: Sequence[tuple[Server, Outage]], since: datetime, now: datetime, model_name: str) -> str:
    lost, rates = 0.0, _rates_before(spans, model_name)
    for (_, one), rate in zip(spans, rates, strict=True):
        known = (min(_end(one, now), one.start + _SOON) - max(one.start, since)).total_seconds()
        lost += max(0.0, known) * (rate or 0.0)
    if lost < 0.5:
        if not any(rates) and None not in (_rates_before(spans, "") if model_name else rates):
            return "there were no requests in the minute before"
        return "requests of that time failed, and no figure counts them"
    return f"about {count(round(lost))} requests failed, at the rate of the minute before; no other figure counts them"


def _end(one: Outage, now: datetime) -> datetime:
    return one.end or now


def _rates_before(spans: Sequence[tuple[Server, Outage]], model_name: str) -> list[float | None]:
    """Return the requests a second in the minute before each outage; None where `watch` stored nothing."""
    begins = [(server.pk, int(one.start.timestamp())) for server, one in spans]
    minutes = [Q(server=key, at__gte=at - _BEFORE_S, at__lt=at) for key, at in begins]
    starts = [at for _, at in begins]
    rows = metrics_rows({key for key, _ in begins}, model_name, FINEST, min(starts) - _BEFORE_S, max(starts))
    before: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, at, data in rows.filter(Q(*minutes, _connector=Q.OR)).values_list("server", "at", "data"):
        before[key].append((at, decode(data).requests))
    found = [[asked for at, asked in before[key] if start - _BEFORE_S <= at < start] for key, start in begins]
    return [sum(asked) / _BEFORE_S if asked else None for asked in found]
