"""Metrics history, written by `watch`: one second for 15 minutes, ten seconds for a day, five minutes for a month.

Coarser spans are made from the finer rows in the database, so that nothing is lost when `watch` restarts.
"""

from collections import defaultdict

from django.db import transaction
from django.db.models import Max

from dashboard.metrics.feed import Tick
from dashboard.metrics.samples import FINEST, RESOLUTIONS, Sample, decode, encode, merge_samples
from dashboard.metrics.usage import combine_side_by_side
from dashboard.models import MetricSample, Server

_COARSER = {10: 1, 300: 10}  # resolution -> that of the rows it is made from
# Seconds that rows are kept beyond RESOLUTIONS: they are needed until they are in a whole coarser span, and clocks differ.
_MARGIN_S = {1: 30, 10: 600, 300: 600}


def metrics_store_tick(server: Server, tick: Tick, at: int, previous_at: int) -> None:
    """Store one second of a server, in one transaction with the coarser spans that are complete with it.

    at, previous_at: Unix seconds under which this tick and the one before it are filed. With 0 for the one before, the spans
    are made that a stop of `watch` left unmade.
    """
    total = combine_side_by_side(list(tick.models.values()))
    rows = [
        _row(server, name, version, FINEST, at, Sample(usage.pack())) for (name, version), usage in tick.models.items()
    ]
    rows.append(_row(server, "", 0, FINEST, at, Sample(total.pack(), tick.process)))
    with transaction.atomic():
        MetricSample.objects.bulk_create(rows, ignore_conflicts=True)
        for resolution, finer in _COARSER.items():
            if at // resolution != previous_at // resolution:
                _roll_up(server, resolution, finer, until=at - at % resolution)


def _roll_up(server: Server, resolution: int, finer: int, until: int) -> None:
    """Make the spans that end at or before `until` and are not there yet from the rows of the finer resolution."""
    rows = MetricSample.objects.filter(server=server)
    newest = rows.filter(resolution=resolution).aggregate(newest=Max("at"))["newest"]
    since = until - RESOLUTIONS[finer] if newest is None else newest + resolution
    parts: dict[tuple[int, str, int], list[bytes | memoryview]] = defaultdict(list)
    found = rows.filter(resolution=finer, at__gte=since, at__lt=until).order_by("at")
    for name, version, at, data in found.values_list("model_name", "version", "at", "data").iterator():
        parts[at - at % resolution, name, version].append(data)
    merged = [
        _row(server, name, version, resolution, at, merge_samples(map(decode, spans)))
        for (at, name, version), spans in parts.items()
    ]
    MetricSample.objects.bulk_create(merged, ignore_conflicts=True, batch_size=500)


def metrics_prune(now: float) -> int:
    """Remove the rows that are older than their resolution is kept, and return how many they were. `now` is in Unix seconds."""
    gone = 0
    for resolution, kept_s in RESOLUTIONS.items():
        cut = int(now) - kept_s - _MARGIN_S[resolution]
        gone += MetricSample.objects.filter(resolution=resolution, at__lt=cut).delete()[0]
    return gone


def _row(server: Server, name: str, version: int, resolution: int, at: int, sample: Sample) -> MetricSample:
    return MetricSample(
        server=server, model_name=name, version=version, resolution=resolution, at=at, data=encode(sample)
    )
