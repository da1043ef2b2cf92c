"""GET /api/v1/web-metrics: what this web process does, as text for Prometheus."""

import os
import time
from itertools import accumulate
from pathlib import Path

from django.db import connection

from dashboard.metrics.exposition import family
from dashboard.metrics.live import FEEDS
from dashboard.shared.heartbeat import STARTED_S
from dashboard.web.traffic import BOUNDS_S, TRAFFIC

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POOL = {"pool_size": "open", "pool_available": "free", "requests_waiting": "waiting"}


def web_metrics() -> str:
    with TRAFFIC.lock:
        answered = dict(TRAFFIC.answered)
        times = {route: ([*accumulate(one.counts)], one.sum_s) for route, one in TRAFFIC.times.items()}
        under_way = TRAFFIC.under_way
    took: dict[str, float] = {}
    for route, (counts, sum_s) in times.items():
        for bound, count in zip((*BOUNDS_S, "+Inf"), counts, strict=True):
            took[f'_bucket route="{route}",le="{bound}"'] = count
        took |= {f'_sum route="{route}"': round(sum_s, 6), f'_count route="{route}"': counts[-1]}
    return "".join(
        (
            family(
                "slipway_web_requests_total",
                "counter",
                "Answered requests by the name of their route, method and status.",
                {
                    f'route="{route}",method="{method}",status="{status}"': n
                    for (route, method, status), n in answered.items()
                },
            ),
            family(
                "slipway_web_request_duration_seconds",
                "histogram",
                "Time until a request's answer began, by route.",
                took,
            ),
            family("slipway_web_requests_under_way", "gauge", "Requests that are being answered.", {"": under_way}),
            family(
                "slipway_web_websockets",
                "gauge",
                "Open WebSockets by kind.",
                {f'kind="{kind}"': count for kind, count in list(TRAFFIC.websockets.items())},
            ),
            family(
                "slipway_web_feed_age_seconds",
                "gauge",
                "Time since the last second of metrics from each server whose charts somebody watches.",
                {f'server="{name}"': round(age, 3) for name, age in FEEDS.ages().items()},
            ),
            _database(),
            _process(),
        )
    )


def _database() -> str:
    """Return the sessions of PostgreSQL's pool; "" for SQLite, and before the first session."""
    pool = getattr(connection, "pool", None)
    if pool is None:
        return ""
    stats = pool.get_stats()
    about = "Sessions of the pool: open, and of these free; and requests that wait for one."
    values = {f'state="{word}"': stats.get(name, 0) for name, word in _POOL.items()}
    return family("slipway_web_database_sessions", "gauge", about, values)


def _process() -> str:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    return "".join(
        (
            family("process_cpu_seconds_total", "counter", "CPU time of the process.", {"": time.process_time()}),
            family("process_resident_memory_bytes", "gauge", "Memory of the process.", {"": resident}),
            family("process_start_time_seconds", "gauge", "When the process started, in unix time.", {"": STARTED_S}),
        )
    )
