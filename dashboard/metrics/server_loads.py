"""The load of each server beside the others: its requests, its latency, its memory, and its share."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dashboard.metrics.samples import FINE, Sample, decode
from dashboard.metrics.usage import combine, figures
from dashboard.models import MetricSample, Server
from dashboard.servers.selectors import answers

LOAD_SECONDS = 60
_LATE_S = 2 * FINE  # rows of FINE seconds are made when they are over, so the newest one may be so old
_SPARK_STEP, _SPARK_SECONDS = 60, 15 * 60


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What a server that answers did in its last LOAD_SECONDS: rates per second, times in ms, shares from 0 to 1, or None.

    skew: its requests a second, against the mean of the servers that answer; 1 is the mean. None if they had no requests, or
    it is the only one. spark: requests a second in each of the last 15 minutes, the oldest first; None where none is stored.
    """

    rps: float | None = None
    p99: float | None = None
    error_share: float | None = None
    memory: int | None = None  # resident bytes
    cpu: float | None = None  # cores
    skew: float | None = None
    spark: list[float | None] = field(default_factory=list)


def server_loads(
    servers: Sequence[Server], now: float | None = None, *, sparks: bool = True, beside: Sequence[Server] = ()
) -> dict[int, ServerLoad]:
    """Return the load of each server by its key. now: in Unix seconds. sparks: whether to read the last 15 minutes, too.
    beside: all servers of the mean, if `servers` are only those of a page."""
    now = time.time() if now is None else now
    alike = [server for server in beside or servers if answers(server)]
    newest = _samples(alike, FINE, int(now) - LOAD_SECONDS - _LATE_S)
    first = int(now) // _SPARK_STEP * _SPARK_STEP - _SPARK_SECONDS
    lines = {key: _spark(rows, first) for key, rows in _samples(servers if sparks else (), _SPARK_STEP, first).items()}
    found = {server.pk: _load(newest.get(server.pk, []), lines.get(server.pk, [])) for server in servers}
    rates = [_rate(rows) for rows in newest.values()]
    mean = sum(rates) / len(rates) if len(rates) > 1 else 0.0
    if not mean:
        return found
    return {
        key: load if load.rps is None else replace(load, skew=round(load.rps / mean, 2)) for key, load in found.items()
    }


def _samples(servers: Sequence[Server], resolution: int, since: int) -> dict[int, list[tuple[int, Sample]]]:
    rows = MetricSample.objects.filter(
        server__in=servers, resolution=resolution, model_name="", version=0, at__gte=since
    )
    found: dict[int, list[tuple[int, Sample]]] = defaultdict(list)
    for key, at, data in rows.order_by("at").values_list("server", "at", "data"):
        found[key].append((at, decode(data)))
    return found


def _spark(minutes: list[tuple[int, Sample]], first: int) -> list[float | None]:
    rates = {at: sample.requests / _SPARK_STEP for at, sample in minutes}
    return [rates.get(at) for at in range(first, first + _SPARK_SECONDS, _SPARK_STEP)]


def _last(newest: list[tuple[int, Sample]]) -> list[Sample]:
    return [sample for at, sample in newest if at > newest[-1][0] - LOAD_SECONDS]


def _rate(newest: list[tuple[int, Sample]]) -> float:
    last = _last(newest)
    return sum(sample.requests for sample in last) / (len(last) * FINE)


def _load(newest: list[tuple[int, Sample]], spark: list[float | None]) -> ServerLoad:
    if not newest:
        return ServerLoad(spark=spark)
    last = _last(newest)
    usage, process = combine(sample.usage for sample in last), last[-1].process
    shown, failed = figures(usage, len(last) * FINE), max(0, usage.fail - usage.cancel)
    requests = usage.success + failed
    return ServerLoad(
        rps=shown["rps"],
        p99=shown["p99"],
        error_share=failed / requests if requests else None,
        memory=process["rss"] if process else None,
        cpu=round(process["cpu"], 3) if process else None,
        spark=spark,
    )
