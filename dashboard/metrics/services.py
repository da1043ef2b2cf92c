"""Stores the metrics history for `watch`, in the spans of samples.RESOLUTIONS, from seconds to tens of minutes.

Coarser spans are made from finer rows in the database, so that a restart of `watch` loses nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django.db import connection, transaction
from django.db.models import Max, Min

from dashboard.metrics.feed import Key, Tick
from dashboard.metrics.samples import FINE, FINEST, RESOLUTIONS, Sample, decode, encode, merge_samples
from dashboard.metrics.usage import Usage, combine_side_by_side
from dashboard.models import MetricSample, Server

_FINER = {coarse: fine for fine, coarse in pairwise(sorted(RESOLUTIONS))}  # resolution -> the one that it is made from
# Rows are kept so much longer than RESOLUTIONS, because coarser spans are made from them, charts begin with a whole step, and
# clocks differ.
_MARGIN_S = 30
_MARGIN_SPANS = 20
_Row = tuple[int, str, int, int, int, bytes]
_INTO = "INTO dashboard_metricsample (server_id, model_name, version, resolution, at, data)"
_INSERT = f"INSERT OR IGNORE {_INTO} VALUES (%s, %s, %s, %s, %s, %s)"
_ARRAYS = "%s::bigint[], %s::text[], %s::bigint[], %s::int[], %s::bigint[], %s::bytea[]"
_INSERT_ARRAYS = f"INSERT {_INTO} SELECT * FROM unnest({_ARRAYS}) ON CONFLICT DO NOTHING"
_AT_ONCE_S = 6 * 3600  # spans of so many seconds are made at once; only after an upgrade more are missing


@dataclass(frozen=True, slots=True)
class ServerTick:
    """One second of a server. at, previous_at: Unix seconds of this tick and of the one stored before. A previous_at
    of 0 also makes the spans that are missing because `watch` was stopped."""

    server: Server
    tick: Tick
    at: int
    previous_at: int


def metrics_store_tick(server: Server, tick: Tick, at: int, previous_at: int) -> None:
    """Store one second of a server and the coarser spans that it completes, in one transaction."""
    metrics_store_ticks([ServerTick(server, tick, at, previous_at)])


def metrics_store_ticks(ticks: Sequence[ServerTick]) -> None:
    """Store one second of each of several servers, and the coarser spans that they complete, in one transaction."""
    with transaction.atomic():
        _insert(row for one in ticks for row in _rows(one))
        for resolution, finer in _FINER.items():
            together: dict[int, list[Server]] = defaultdict(list)  # of those that lack only their last span
            for one in ticks:
                until = one.at - one.at % resolution
                if one.previous_at // resolution == until // resolution - 1 and RESOLUTIONS[finer] <= _AT_ONCE_S:
                    together[until].append(one.server)
                elif one.previous_at < until:
                    _roll_up(one.server, resolution, finer, until)
            for until, servers in together.items():
                _merge([one.pk for one in servers], resolution, finer, until - resolution, until)


def _rows(one: ServerTick) -> Iterator[_Row]:
    total = combine_side_by_side(list(one.tick.models.values()))
    for (name, version), usage in one.tick.models.items():
        yield _row(one.server.pk, name, version, FINEST, one.at, _sample(one.tick, (name, version), usage))
    yield _row(one.server.pk, "", 0, FINEST, one.at, Sample(total.pack(), one.tick.process))


def _roll_up(server: Server, resolution: int, finer: int, until: int) -> None:
    """Make the missing spans that end at or before `until` from the rows of the finer resolution, the oldest first."""
    rows = MetricSample.objects.filter(server=server)
    total = rows.filter(model_name="", version=0)  # with the version, the unique index leads to the one row
    newest = total.filter(resolution=resolution).aggregate(newest=Max("at"))["newest"]
    since = until - RESOLUTIONS[finer] if newest is None else newest + resolution
    oldest = total.filter(resolution=finer, at__gte=since).aggregate(oldest=Min("at"))["oldest"]
    if oldest is None:
        return
    _merge([server.pk], resolution, finer, since, min(until, oldest - oldest % resolution + _AT_ONCE_S))


def _merge(servers: list[int], resolution: int, finer: int, since: int, until: int) -> None:
    """Make the spans of some servers from `since` to `until` from their rows of the finer resolution."""
    parts: dict[tuple[int, int, str, int], list[bytes | memoryview]] = defaultdict(list)
    found = MetricSample.objects.filter(server__in=servers, resolution=finer, at__gte=since, at__lt=until).order_by(
        "at"
    )
    for server, name, version, at, data in found.values_list(
        "server", "model_name", "version", "at", "data"
    ).iterator():
        parts[server, at - at % resolution, name, version].append(data)
    apart = resolution <= FINE
    merged = [
        _row(server, name, version, resolution, at, merge_samples(map(decode, spans), instances=apart))
        for (server, at, name, version), spans in parts.items()
    ]
    _insert(merged)


def metrics_prune(now: float) -> int:
    """Remove rows that are older than their resolution allows, and return their number. now: in Unix seconds."""
    gone = 0
    for resolution, kept_s in RESOLUTIONS.items():
        cut = int(now) - kept_s - _MARGIN_S - _MARGIN_SPANS * resolution
        gone += MetricSample.objects.filter(resolution=resolution, at__lt=cut).delete()[0]
    return gone


def _sample(tick: Tick, key: Key, usage: Usage) -> Sample:
    return Sample(usage.pack(), None, {label: one.pack() for label, one in tick.instances.get(key, {}).items()})


def _row(server: int, name: str, version: int, resolution: int, at: int, sample: Sample) -> _Row:
    return server, name, version, resolution, at, encode(sample)


def _insert(rows: Iterable[_Row]) -> None:
    """Add the rows that are not there yet. `bulk_create` does the same, and takes several times as long for small rows."""
    if not (found := list(rows)):
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_INSERT_ARRAYS, [list(column) for column in zip(*found, strict=True)])
        else:
            cursor.executemany(_INSERT, found)
