"""The advice for a model, from the stored samples of production's busiest server since its configuration began to serve."""

import math
import os
import time
from collections import Counter, defaultdict
from typing import NamedTuple

from dashboard.advice.advice import Finding, advise
from dashboard.advice.traffic import Traffic
from dashboard.metrics.samples import FINE, FINEST, RESOLUTIONS, decode
from dashboard.metrics.selectors import metrics_rows
from dashboard.metrics.usage import Usage, combine
from dashboard.models import Model, ReleaseSpan, Server
from dashboard.releases.selectors import newest_release
from dashboard.servers.selectors import gpu_count, production_servers
from repository.config.document import Document

WINDOW_S = RESOLUTIONS[FINEST]  # the traffic of so many seconds is read
LATELY_S = 120  # the server that had the most requests in this time is advised
KEPT_S = 60  # an advice is not made again for so many seconds
_MOST_KEPT = 500  # models


class _Kept(NamedTuple):
    """An advice for a text of a model, until the monotonic time `until`."""

    release: int
    until: float
    finding: Finding


_kept: dict[int, _Kept] = {}  # by the model's key


def model_advice(model: Model) -> Finding:
    """Return the advice for a model, or the reason for none. Takes up to a second, once a minute for each model."""
    server, newest = _busiest(model.name), newest_release(model)
    if server is None or newest is None:
        return Finding(None, "There is no advice: the model has no configuration that serves.")
    kept = _kept.get(model.pk)
    if kept is None or kept.release != newest.pk or kept.until < time.monotonic():
        span = ReleaseSpan.objects.filter(model=model, server=server, ended_at=None).first()
        if span is None:
            return Finding(None, "There is no advice: the model does not serve.")
        since = max(span.started_at, newest.created_at).timestamp()
        finding = _advice(server, model.name, newest.document, since)
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        kept = _kept[model.pk] = _Kept(newest.pk, time.monotonic() + KEPT_S, finding)
    return kept.finding


def _busiest(model_name: str) -> Server | None:
    """Return the server of production that had the most requests to the model lately: what fits it fits the others."""
    found = list(production_servers())
    if not found[1:]:
        return next(iter(found), None)
    asked: Counter[int] = Counter({one.pk: 0 for one in found})
    now = int(time.time())
    for pk, data in metrics_rows([*asked], model_name, FINE, now - LATELY_S, now).values_list("server", "data"):
        asked[pk] += decode(data).requests
    return max(found, key=lambda one: asked[one.pk])


def _advice(server: Server, model_name: str, document: Document, since: float) -> Finding:
    cores = len(os.sched_getaffinity(0)) if server.bundled else None
    return advise(_traffic(server, model_name, since, cores), document, gpus=gpu_count(server))


def _traffic(server: Server, model_name: str, since: float, cores: int | None) -> Traffic:
    """Return the traffic of the model's busiest version since a moment (Unix seconds), at most of the last WINDOW_S seconds."""
    now = time.time()
    span = math.floor(max(since, now - WINDOW_S)) + 1, math.ceil(now) + 1
    usages: dict[int, list[Usage]] = defaultdict(list)
    for version, data in metrics_rows([server.pk], model_name, FINEST, *span).values_list("version", "data"):
        usages[version].append(decode(data).usage)
    gauges = [
        decode(data).process for data in metrics_rows([server.pk], "", FINEST, *span).values_list("data", flat=True)
    ]
    cpu = [one["cpu"] for one in gauges if one is not None]
    totals = [combine(one) for one in usages.values()]
    busiest = max(totals, key=lambda one: one.success, default=Usage())
    return Traffic(busiest, float(max(1, len(cpu))), sum(cpu) / max(1, len(cpu)), cores)
