"""What is known of the requests that clients sent while a server did not answer, which no server has counted."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.metrics.samples import FINEST, decode
from dashboard.models import MetricSample, Server
from dashboard.servers.selectors import Outage, outages
from dashboard.templatetags.units import count, duration

_BEFORE_S = 60  # in which clients are taken to have sent as many requests as afterwards
_SOON = timedelta(minutes=5)  # after which they may have given up


def outage_sentence(servers: Sequence[Server], seconds: int = 900, model_name: str = "") -> str:
    """Return for how long servers did not answer in the last seconds, and how many requests of a model, or of all, that was.

    "" where all of them answered. What was sent meanwhile is in no count: it is reckoned from the minute before.
    """
    now = timezone.now()
    since = now - timedelta(seconds=seconds)
    spans = [(server, one) for server in servers for one in outages(server, since, now)]
    if not spans:
        return ""
    names = ", ".join(sorted({server.name for server, _ in spans}))
    down = sum((_end(one, now) - max(one.start, since)).total_seconds() for _, one in spans)
    said = f"{names} did not answer for {duration(down)} of the last {duration(seconds)}"
    return f"{said}: {_lost(spans, since, now, model_name)}"


def _lost(spans: Sequence[tuple[Server, Outage]], since: datetime, now: datetime, model_name: str) -> str:
    lost, asked = 0.0, False
    for server, one in spans:
        known = (min(_end(one, now), one.start + _SOON) - max(one.start, since)).total_seconds()
        rate = _rate_before(server, one.start, model_name)
        lost, asked = lost + max(0.0, known) * rate, asked or rate > 0
    if lost < 0.5:
        nobody = not asked and all(_was_watched(*span) for span in spans)
        return "nobody asked it in the minute before" if nobody else _UNKNOWN
    return f"about {count(round(lost))} requests failed, at the rate of the minute before; they are in no other figure"


_UNKNOWN = "requests that were sent then failed, and are in no figure"


def _end(one: Outage, now: datetime) -> datetime:
    return one.end or now


def _rate_before(server: Server, start: datetime, model_name: str) -> float:
    """Return the requests a second in the minute before an outage."""
    return (
        sum(decode(data).requests for data in _rows(server, start, model_name).values_list("data", flat=True))
        / _BEFORE_S
    )


def _was_watched(server: Server, one: Outage) -> bool:
    return _rows(server, one.start, "").exists()


def _rows(server: Server, start: datetime, model_name: str) -> QuerySet[MetricSample]:
    at = int(start.timestamp())
    return MetricSample.objects.filter(
        server=server, model_name=model_name, resolution=FINEST, at__gte=at - _BEFORE_S, at__lt=at
    )
