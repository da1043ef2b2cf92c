"""Triton's nv_inference_first_response_histogram_ms: how long clients of a model wait for the first response.

Source: Triton, docs/user_guide/metrics.md; for the default bounds Triton's observed behaviour.
"""

from bisect import bisect_left
from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig

FAMILY = "nv_inference_first_response_histogram_ms"
DEFAULT_BOUNDS_MS = (100, 500, 2000, 5000)


class FirstResponses:
    """A histogram over milliseconds."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        """bounds_ms: inclusive upper bounds, rising."""
        self.bounds_ms = list(bounds_ms)
        self.counts = [0] * (len(self.bounds_ms) + 1)
        self.sum_ms = 0

    def add(self, nanoseconds: int) -> None:
        milliseconds = nanoseconds // 1_000_000
        self.counts[bisect_left(self.bounds_ms, milliseconds)] += 1
        self.sum_ms += milliseconds


def first_responses(config: ModelConfig, wanted: bool | None, before: FirstResponses | None) -> FirstResponses | None:
    """The histogram that the configuration asks for; by default only of a decoupled model. Counts stay with their bounds."""
    if not (config.model_transaction_policy.decoupled if wanted is None else wanted):
        return None
    bounds: Sequence[float] = DEFAULT_BOUNDS_MS
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FAMILY:
            bounds = control.histogram_options.buckets
    return before if before is not None and before.bounds_ms == list(bounds) else FirstResponses(bounds)
