"""What Grafana draws: histogram_quantile of the exported buckets, computed as Prometheus does, is within 10 % of the truth."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest

from repository.core.histogram import BOUNDS_US, Histogram
from serving.frontends.metrics import prometheus
from serving.telemetry.statistics import ModelStatistics
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
BUCKET = re.compile(r'^slipway_request_duration_seconds_bucket\{.*le="([^"]+)"\} (\S+)$', re.MULTILINE)


def histogram_quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    """Prometheus' function, of (upper bound, cumulative count) in ascending order, the last one +Inf.

    Source: Prometheus, promql/quantile.go, bucketQuantile."""
    rank = quantile * buckets[-1][1]
    index = next(index for index, (_, count) in enumerate(buckets) if count >= rank)
    if index == len(buckets) - 1:
        return buckets[-2][0]
    if index == 0 and buckets[0][0] <= 0:
        return buckets[0][0]
    start, end = (buckets[index - 1][0] if index else 0.0), buckets[index][0]
    before = buckets[index - 1][1] if index else 0
    return start + (end - start) * (rank - before) / (buckets[index][1] - before)


def exported(durations_s: np.ndarray) -> list[tuple[float, float]]:
    """The buckets on the page of a model whose requests took so long."""
    model = ModelStatistics("m", 1)
    for duration in durations_s:
        model.request_latency.add(round(duration * 1e9))
    return buckets_on("".join(prometheus.of_models([model])))


def buckets_on(page: str) -> list[tuple[float, float]]:
    return [(float(bound), float(count)) for bound, count in BUCKET.findall(page)]


def spread(make: Callable[[np.random.Generator], np.ndarray]) -> Callable[[], np.ndarray]:
    return lambda: np.clip(make(np.random.default_rng(7)), 40e-6, 60)


COUNT = 20_000
DISTRIBUTIONS = {
    "uniform": spread(lambda random: random.uniform(0.001, 0.030, COUNT)),
    "exponential": spread(lambda random: random.exponential(0.005, COUNT)),
    "normal": spread(lambda random: random.normal(0.1, 0.004, COUNT)),
    "long tail": spread(lambda random: random.lognormal(math.log(0.004), 1.5, COUNT)),
    "heavy tail": spread(lambda random: 0.002 * (1 + random.pareto(1.1, COUNT))),
    "two speeds": spread(lambda random: np.where(random.random(COUNT) < 0.97, 0.0033, 0.41)),
    "a slow few": spread(
        lambda random: np.where(random.random(COUNT) < 0.985, random.normal(0.008, 0.001, COUNT), 2.7)
    ),
    "tiny": spread(lambda random: random.gamma(4, 20e-6, COUNT)),
    "minutes": spread(lambda random: random.uniform(20, 58, COUNT)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_quantile_is_within_a_tenth(name: str) -> None:
    durations = DISTRIBUTIONS[name]()
    buckets = exported(durations)
    for quantile in QUANTILES:
        right = float(np.quantile(durations, quantile, method="inverted_cdf"))
        assert histogram_quantile(quantile, buckets) == pytest.approx(right, rel=0.1), quantile


def test_whatever_one_latency_is_its_quantiles_are_within_a_tenth() -> None:
    """The worst case: all requests take equally long, just above a bound or just below the next."""
    for bound in prometheus.FINEST.bounds_us[:-1]:
        for microseconds in (bound, bound + 1, bound * 1.03, bound * 1.09):
            buckets = exported(np.full(100, microseconds / 1e6))
            for quantile in (0.01, 0.5, 0.99):
                assert histogram_quantile(quantile, buckets) == pytest.approx(microseconds / 1e6, rel=0.1)


def test_no_bound_is_more_than_a_tenth_above_the_one_before_and_each_is_one_of_the_fine_ones() -> None:
    bounds = prometheus.FINEST.bounds_us
    assert all(after <= 1.1 * before for before, after in pairwise(bounds))
    assert set(bounds) <= set(BOUNDS_US)
    assert len(bounds) == 211
    assert Histogram().counts == {}


@pytest.mark.parametrize(("to_a_doubling", "widest", "count"), [(1, 2.0, 22), (2, 1.46, 43), (5, 1.2, 106)])
def test_fewer_buckets_to_a_doubling_have_bounds_that_more_have(to_a_doubling: int, widest: float, count: int) -> None:
    bounds = prometheus.LatencyBuckets(to_a_doubling).bounds_us
    assert len(bounds) == count
    assert all(after <= widest * before for before, after in pairwise(bounds))
    assert set(bounds) <= set(prometheus.FINEST.bounds_us)


def test_without_buckets_histograms_have_their_sums_and_counts() -> None:
    model = ModelStatistics("m", 1)
    model.request_latency.add(2_000_000)
    page = "".join(prometheus.of_models([model], buckets=prometheus.LatencyBuckets(0)))
    assert set(re.findall(r'le="([^"]+)"', page)) == {"+Inf"}
    assert buckets_on(page) == [(math.inf, 1)]
    assert re.search(r"^slipway_request_duration_seconds_sum\{.*\} 0.002$", page, re.MULTILINE)
    assert re.search(r"^slipway_request_duration_seconds_count\{.*\} 1$", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("flags", "unused", "used"),
    [
        ((), 23, 212),
        (("--metrics-buckets-per-doubling=2",), 23, 44),
        (("--metrics-level=lean",), 1, 23),
        (("--metrics-level=lean", "--metrics-buckets-per-doubling=2"), 1, 44),
    ],
)
def test_a_model_without_requests_has_few_buckets_and_all_of_them_from_its_first_request_on(
    tmp_path: Path, flags: tuple[str, ...], unused: int, used: int
) -> None:
    onnx_scale(tmp_path)
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
    with ServerProcess(tmp_path, *flags) as server:
        before = buckets_on(httpx.get(server.metrics_url, timeout=PATIENCE_S).text)
        assert server.post("/v2/models/scale/infer", body)[0] == 200
        after = buckets_on(httpx.get(server.metrics_url, timeout=PATIENCE_S).text)
    assert (len(before), len(after)) == (unused, used)
    assert {bound for bound, _ in before} <= {bound for bound, _ in after}
    assert after[-1] == (math.inf, 1)
