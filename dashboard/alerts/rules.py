"""Own alerts: a charted figure, over the last minutes together, above or below a value.

The figures of a window are computed from its merged histograms, as those of charts are: a p99 over five minutes is that of all
requests of these minutes.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from django.urls import reverse

from dashboard.alerts.facts import Facts, Finding
from dashboard.alerts.finders import FAILED, SLOWEST, charts_address, requests_address
from dashboard.metrics.samples import FINE, decode, merge_processes
from dashboard.metrics.selectors import metrics_rows
from dashboard.metrics.usage import combine, combine_side_by_side, figures
from dashboard.models import AlertRule, Server
from dashboard.models.environment import PRODUCTION
from dashboard.servers.selectors import environment_of

_LATE_S = 30  # a row of FINE seconds is there at most so long after it ended


class Figure(NamedTuple):
    """A charted figure. process: of the server's process, not of a model. part: of the tab Requests that shows its cause."""

    label: str
    unit: str
    process: bool = False
    part: str = ""


FIGURES: Mapping[str, Figure] = {
    "rps": Figure("Requests", "/s"),
    "errors": Figure("Errors", "/s", part=FAILED),
    "cancelled": Figure("Cancelled requests", "/s"),
    "failed_rejected": Figure("Rejected requests", "/s", part=FAILED),
    "p50": Figure("p50 latency", "ms", part=SLOWEST),
    "p95": Figure("p95 latency", "ms", part=SLOWEST),
    "p99": Figure("p99 latency", "ms", part=SLOWEST),
    "queue_ms": Figure("Mean queue time", "ms", part=SLOWEST),
    "compute_ms": Figure("Mean compute time", "ms", part=SLOWEST),
    "inferences": Figure("Rows", "/s"),
    "pending": Figure("Pending requests", ""),
    "in_flight": Figure("Requests in flight", ""),
    "cache_share": Figure("Share answered from the cache", ""),
    "rss": Figure("Memory of the server", "bytes", process=True),
    "cpu": Figure("CPU of the server", "cores", process=True),
}


def find_by_rule(rule: AlertRule, facts: Facts) -> Iterator[Finding]:
    """Find the servers whose figure is beyond a rule's value: of a model, among those of production."""
    figure = FIGURES[rule.figure]
    start = int(facts.timestamp) - _LATE_S - 60 * rule.minutes
    start -= start % FINE
    for server in facts.servers:
        if rule.model_name and environment_of(server) != PRODUCTION:
            continue
        value = figure_of(server, rule.model_name, rule.figure, start, start + 60 * rule.minutes)
        unknown = value is not None and math.isnan(value)
        if value is None or not (unknown or (value > rule.threshold if rule.above else value < rule.threshold)):
            continue
        where = rule.model_name or server.name
        beyond = "above" if rule.above else "below"
        title = f"{rule.name}: {figure.label} of {where} is {beyond} {rule.threshold:g} {figure.unit}".rstrip()
        detail = f"It was {value:.4g} {figure.unit} over {rule.minutes} min on {server.name}.".replace(" .", ".")
        if not rule.model_name:
            address = f"{reverse('server', args=[server.name])}?at={int(facts.timestamp)}"
        elif figure.part:
            address = requests_address(rule.model_name, start, figure.part, server.name)
        else:
            address = charts_address(rule.model_name, facts.timestamp, server.name)
        subject = where if where == server.name else f"{where} on {server.name}"
        yield Finding(subject[:220], title[:300], detail, address, rule.model_name, opens=not unknown)


def figure_of(server: Server, model_name: str, name: str, start: int, end: int) -> float | None:
    """Return a figure of [start, end) on one server; None if nothing was measured, NaN if it is unknown whether.

    It is unknown if the server did not answer or `watch` did not run: then an alert that fires goes on, and none begins.
    """
    rows = metrics_rows([server.pk], "", FINE, start, end)
    whole = [(at, decode(data)) for at, data in rows.values_list("at", "data")]
    if not whole:
        return math.nan
    if FIGURES[name].process:
        processes = [sample.process for _, sample in whole if sample.process is not None]
        return float(merge_processes(processes)[name]) if processes else None  # type: ignore[literal-required]
    usages = {at: [] if model_name else [sample.usage] for at, sample in whole}
    if model_name:
        for at, data in metrics_rows([server.pk], model_name, FINE, start, end).values_list("at", "data"):
            usages.setdefault(at, []).append(decode(data).usage)
    usage = combine(combine_side_by_side(parts) for parts in usages.values())
    value = figures(usage, FINE * len(whole))[name]  # type: ignore[literal-required]
    return None if value is None else float(value)
