"""Quantiles come from merged buckets, and agree with the durations themselves within a bucket's width."""

import itertools

import numpy as np
import pytest

from repository.core.histogram import BOUNDS_US, bucket_of, merge, quantiles_ms, subtract

SHARES = (0.5, 0.95, 0.99)


def histogram(durations_us: np.ndarray) -> dict[int, int]:
    return merge({bucket_of(int(duration)): 1} for duration in durations_us)


def test_bounds_ascend_and_cover_half_an_hour():
    assert all(low < high for low, high in itertools.pairwise(BOUNDS_US))
    assert BOUNDS_US[0] == 1
    assert BOUNDS_US[-1] > 30 * 60 * 1_000_000


def test_percentiles_agree_with_the_durations():
    durations = np.random.default_rng(1).lognormal(8, 1.5, 20_000)
    exact = np.percentile(durations, [share * 100 for share in SHARES]) / 1000
    assert quantiles_ms(histogram(durations), SHARES) == pytest.approx(exact.tolist(), rel=0.06)


def test_percentiles_of_merged_histograms_are_those_of_all_durations_together():
    random = np.random.default_rng(2)
    quick, slow = random.lognormal(5, 1, 9_000), random.lognormal(11, 1, 1_000)
    together = quantiles_ms(histogram(np.concatenate([quick, slow])), SHARES)
    assert quantiles_ms(merge([histogram(quick), histogram(slow)]), SHARES) == together


def test_an_empty_histogram_has_no_percentiles():
    assert quantiles_ms({}, SHARES) == [None, None, None]


def test_a_difference_holds_only_what_was_added():
    assert subtract({1: 5, 2: 3, 9: 1}, {1: 5, 2: 1}) == {2: 2, 9: 1}
