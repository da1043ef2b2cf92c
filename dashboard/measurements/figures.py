"""Figures of a load from its windows: means with 95 % confidence intervals, and the parts of the mean latency."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from dashboard.loads.outcome import Outcome
from dashboard.loads.program import Window
from dashboard.models.measurement import BatchTimes, Figure, LoadFigures

# The 97.5 % quantiles of Student's t distribution for 1, 2, ... degrees of freedom; the last one is used for all higher ones.
_T = (
    *(12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
PARTS = ("queue", "input", "compute", "output", "other", "wire")
_SERVER_PARTS = {
    "queue": "queue",
    "compute_input": "input",
    "compute_infer": "compute",
    "compute_output": "output",
}

# The cumulative statistics of a version, by a path of their names: ("success", "ns"), ("batch", "4", "compute_infer", "ns").
Counts = Mapping[tuple[str, ...], int]


def figure(values: Iterable[float]) -> Figure | None:
    """Return the mean of the values of windows, which are taken for independent; None if there are none."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    spread = None
    if len(known) > 1:
        spread = _T[min(len(known) - 1, len(_T)) - 1] * statistics.stdev(known) / math.sqrt(len(known))
    return Figure(value=statistics.fmean(known), spread=spread)


def load_figures(windows: Sequence[Window], readings: Sequence[Counts]) -> LoadFigures:
    """Return the figures of a load. windows: the warm-up first. readings: the statistics at the end of each of them."""
    warmup, measured = windows[0].outcome, [window.outcome for window in windows[1:]]
    grown = [_grown(before, after) for before, after in pairwise(readings)]
    last = windows[-1]
    reasons: dict[str, int] = {}
    for one in measured:
        for reason, count in one.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return LoadFigures(
        load=last.load,
        windows=len(measured),
        stable=last.stable,
        variation=_or_none(last.spread),
        warmup={"per_second": _or_none(warmup.per_second), "p99_ms": _or_none(warmup.p99_ms)},
        per_second=figure(one.per_second for one in measured) or Figure(value=0.0, spread=None),
        mean_ms=figure(one.mean_ms for one in measured),
        p50_ms=figure(one.p50_ms for one in measured),
        p95_ms=figure(one.p95_ms for one in measured),
        p99_ms=figure(one.p99_ms for one in measured),
        requests=sum(one.requests for one in measured),
        failures=sum(one.failures for one in measured),
        reasons=reasons,
        split=_split(measured, grown),
        batches=_batches(_grown(readings[0], readings[-1])),
        cpu_cores=None,
        memory_bytes=None,
        energy_j=None,
    )


def _split(measured: Sequence[Outcome], grown: Sequence[Counts]) -> dict[str, Figure]:
    """Return the parts of the mean latency, each as the mean over windows."""
    rows = [parts for one, counts in zip(measured, grown, strict=False) if (parts := split_of(one.mean_ms, counts))]
    found = {part: figure(row[part] for row in rows) for part in PARTS}
    return {part: value for part, value in found.items() if value is not None}


def split_of(client_ms: float, grown: Counts) -> dict[str, float]:
    """Return the parts of the mean latency of one window in ms; {} if the server counted no request.

    wire is the latency that the client measured, without the time in the server.
    """
    count = grown.get(("success", "count"), 0)
    if not count or math.isnan(client_ms):
        return {}
    parts = {part: grown.get((name, "ns"), 0) / count / 1e6 for name, part in _SERVER_PARTS.items()}
    server_ms = grown.get(("success", "ns"), 0) / count / 1e6
    parts["other"] = max(server_ms - sum(parts.values()), 0.0)
    parts["wire"] = max(client_ms - server_ms, 0.0)
    return parts


def _batches(grown: Counts) -> list[BatchTimes]:
    sizes = sorted({int(path[1]) for path, count in grown.items() if path[0] == "batch" and count})
    return [
        BatchTimes(
            size=size,
            executions=grown.get(("batch", str(size), "compute_infer", "count"), 0),
            input=_batch_ms(grown, size, "compute_input"),
            compute=_batch_ms(grown, size, "compute_infer"),
            output=_batch_ms(grown, size, "compute_output"),
        )
        for size in sizes
    ]


def _batch_ms(grown: Counts, size: int, name: str) -> float:
    count = grown.get(("batch", str(size), name, "count"), 0)
    return grown.get(("batch", str(size), name, "ns"), 0) / count / 1e6 if count else 0.0


def _grown(before: Counts, after: Counts) -> Counts:
    return {path: count - before.get(path, 0) for path, count in after.items()}


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
