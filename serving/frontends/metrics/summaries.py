"""Triton's latency summaries: quantiles over about the last minute, from the difference of two readings of a histogram.

Readings are made at scrapes, so the window is a minute plus at most one scrape interval. A quantile is the upper bound of a
histogram's bucket, at most 6 % too high. Source of the names: Triton, docs/user_guide/metrics.md.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable

from repository.core.histogram import Counts, Histogram, quantile_bounds_us, subtract
from serving.telemetry.statistics import ModelStatistics

WINDOW_S = 60.0
STEP_S = 5.0  # shortest time between two readings

# The name of a family, a phrase for its help text, and a function that returns the histogram of a model, or None.
FAMILIES: list[tuple[str, str, Callable[[ModelStatistics], Histogram | None]]] = [
    ("nv_inference_request_summary_us", "inference request", lambda m: m.request_latency),
    ("nv_inference_queue_summary_us", "inference queuing", lambda m: m.queue_latency),
    ("nv_inference_compute_input_summary_us", "compute input", lambda m: m.phases.compute_input if m.phases else None),
    (
        "nv_inference_compute_infer_summary_us",
        "compute inference",
        lambda m: m.phases.compute_infer if m.phases else None,
    ),
    (
        "nv_inference_compute_output_summary_us",
        "compute output",
        lambda m: m.phases.compute_output if m.phases else None,
    ),
    ("nv_cache_hit_summary_per_model", "cache hit", lambda m: m.phases.cache_hit if m.phases and m.caches else None),
    ("nv_cache_miss_summary_per_model", "cache miss", lambda m: m.phases.cache_miss if m.phases and m.caches else None),
]


class Summaries:
    """Renders the summary families of all models, and keeps the readings."""

    def __init__(self, quantiles: Iterable[float], clock: Callable[[], float] = time.monotonic) -> None:
        """quantiles: from 0 to 1. clock: returns seconds."""
        self._quantiles = list(quantiles)
        self._clock = clock
        self._readings: deque[tuple[float, dict[tuple[str, ModelStatistics], Counts]]] = deque()

    def render(self, models: list[tuple[str, ModelStatistics]]) -> Iterable[str]:
        """Yield the text of each family. models: each model's labels, as the text between the braces, and statistics."""
        base = self._before_window(models)
        for family, text, histogram in FAMILIES:
            found = [(labels, model, now) for labels, model in models if (now := histogram(model)) is not None]
            if not found:
                continue
            lines = [f"# HELP {family} Summary of {text} duration in microseconds\n# TYPE {family} summary"]
            for labels, model, now in found:
                recent = subtract(now.counts, base.get((family, model), {}))
                lines += [
                    f'{family}{{{labels},quantile="{quantile:g}"}} {_format_quantile(recent, quantile)}'
                    for quantile in self._quantiles
                ]
                lines += [f"{family}_sum{{{labels}}} {now.sum_ns // 1000}", f"{family}_count{{{labels}}} {now.total}"]
            yield "\n".join(lines) + "\n"

    def _before_window(self, models: list[tuple[str, ModelStatistics]]) -> dict[tuple[str, ModelStatistics], Counts]:
        """Return the counts of the latest reading that is older than the window, or no counts if there is none. Also keep a
        reading of the present counts."""
        now = self._clock()
        while len(self._readings) > 1 and self._readings[1][0] <= now - WINDOW_S:
            self._readings.popleft()
        base = self._readings[0][1] if self._readings and self._readings[0][0] <= now - WINDOW_S else {}
        if not self._readings or self._readings[-1][0] <= now - STEP_S:
            counts = {
                (family, model): dict(found.counts)
                for family, _, histogram in FAMILIES
                for _, model in models
                if (found := histogram(model)) is not None
            }
            self._readings.append((now, counts))
        return base


def _format_quantile(counts: Counts, quantile: float) -> str:
    """Return a quantile in microseconds; NaN if there was no request, as in Prometheus' client libraries."""
    (bound,) = quantile_bounds_us(counts, [quantile])
    return "NaN" if bound is None else str(bound)
