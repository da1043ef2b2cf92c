"""Ticks and usages made by hand, for tests that need hours of history in a moment."""

from dashboard.metrics.feed import Tick
from dashboard.metrics.samples import ProcessGauges
from dashboard.metrics.usage import Usage
from repository.core.histogram import bucket_of

PROCESS: ProcessGauges = {"rss": 100 << 20, "cpu": 0.5, "threads": 8, "gpus": []}


def usage(requests: int, each_us: int, *, fail: int = 0, pending: int = 0) -> Usage:
    """Requests that all took the same time, each executed alone."""
    histogram = {bucket_of(each_us): requests}
    return Usage(
        success=requests,
        success_ns=requests * each_us * 1000,
        fail=fail,
        queue_count=requests,
        compute_count=requests,
        compute_ns=requests * each_us * 1000,
        inferences=requests,
        executions=requests,
        pending=pending,
        failures={"BACKEND": fail} if fail else {},
        batches={1: requests},
        request=histogram,
        compute=histogram,
    )


def tick(at: float, **models: Usage) -> Tick:
    """Version 1 of each model."""
    return Tick(at, 1.0, {(name, 1): one for name, one in models.items()}, PROCESS)
