"""Own alerts: a charted figure, over the last minutes together, above or below a value.

The figures of a window are computed from its merged histograms, as those of charts are: a p99 over five minutes is that of all
requests of these minutes.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from django.urls import reverse

from dashboard.alerts.facts import Facts, Finding
from dashboard.metrics.samples import decode, merge_processes
from dashboard.metrics.usage import combine, combine_side_by_side, figures
from dashboard.models import AlertRule, MetricSample

_ROW_S = 10
_LATE_S = 30  # a row of ten seconds is there at most so long after it ended


class Figure(NamedTuple):
    """A charted figure. process: of the server's process, not of a model."""

    label: str
    unit: str
    process: bool = False


FIGURES: Mapping[str, Figure] = {
    "rps": Figure("Requests", "/s"),
    "errors": Figure("Errors", "/s"),
    "cancelled": Figure("Cancelled requests", "/s"),
    "failed_rejected": Figure("Rejected requests", "/s"),
    "p50": Figure("p50 latency", "ms"),
    "p95": Figure("p95 latency", "ms"),
    "p99": Figure("p99 latency", "ms"),
    "queue_ms": Figure("Mean queue time", "ms"),
    "compute_ms": Figure("Mean compute time", "ms"),
    "inferences": Figure("Rows", "/s"),
    "pending": Figure("Pending requests", ""),
    "in_flight": Figure("Requests in flight", ""),
    "cache_share": Figure("Share answered from the cache", ""),
    "rss": Figure("Memory of the server", "bytes", process=True),
    "cpu": Figure("CPU of the server", "cores", process=True),
}


def find_by_rule(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    """Find the servers or the model for which a rule's figure is beyond its value."""
    figure = FIGURES[rule.figure]
    start = int(facts.timestamp) - _LATE_S - 60 * rule.minutes
    start -= start % _ROW_S
    for server in facts.servers:
        value = figure_of(server.pk, rule.model_name, rule.figure, start, start + 60 * rule.minutes)
        unknown = value is not None and math.isnan(value)
        if value is None or not (unknown or (value > rule.threshold if rule.above else value < rule.threshold)):
            continue
        where = rule.model_name or server.name
        beyond = "above" if rule.above else "below"
        title = f"{rule.name}: {figure.label} of {where} is {beyond} {rule.threshold:g} {figure.unit}".rstrip()
        detail = f"It was {value:.4g} {figure.unit} over {rule.minutes} min on {server.name}.".replace(" .", ".")
        address = (
            reverse("model", args=[rule.model_name]) + "?range=1h#charts"
            if rule.model_name
            else reverse("server", args=[server.name])
        )
        subject = where if where == server.name else f"{where} on {server.name}"
        yield Finding(subject[:220], title[:300], detail, address, rule.model_name, opens=not unknown)


def figure_of(server: int, model_name: str, name: str, start: int, end: int) -> float | None:
    """Return a figure of [start, end) on one server; None if nothing was measured, NaN if it is unknown whether.

    It is unknown if the server did not answer or `watch` did not run: then an alert that fires goes on, and none begins.
    """
    rows = MetricSample.objects.filter(server=server, resolution=_ROW_S, at__gte=start, at__lt=end)
    whole = [(at, decode(data)) for at, data in rows.filter(model_name="").values_list("at", "data")]
    if not whole:
        return math.nan
    if FIGURES[name].process:
        processes = [sample.process for _, sample in whole if sample.process is not None]
        return float(merge_processes(processes)[name]) if processes else None  # type: ignore[literal-required]
    usages = {at: [] if model_name else [sample.usage] for at, sample in whole}
    if model_name:
        for at, data in rows.filter(model_name=model_name).values_list("at", "data"):
            usages.setdefault(at, []).append(decode(data).usage)
    usage = combine(combine_side_by_side(parts) for parts in usages.values())
    value = figures(usage, _ROW_S * len(whole))[name]  # type: ignore[literal-required]
    return None if value is None else float(value)
