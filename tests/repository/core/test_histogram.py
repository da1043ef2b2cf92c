"""The histograms' buckets: exact bounds, bounded width, sums that merge."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from repository.core.histogram import BOUNDS_US, BUCKETS, Histogram, bucket_of, quantile_bounds_us, quantiles_ms


@given(st.integers(0, 2**33))
def test_a_duration_lies_inside_its_bucket(microseconds):
    index = bucket_of(microseconds)
    lower = BOUNDS_US[index - 1] if index else 0
    if index < BUCKETS - 1:
        assert lower <= microseconds < BOUNDS_US[index]
        assert BOUNDS_US[index] - lower <= max(1, lower / 16 + 1)
    else:
        assert microseconds >= lower


def test_bounds_grow():
    assert all(low < high for low, high in itertools.pairwise(BOUNDS_US))
    assert len(BOUNDS_US) == BUCKETS


@given(st.lists(st.integers(-5, 2**42), max_size=20))
def test_a_histogram_counts_every_duration_where_bucket_of_says(nanoseconds):
    histogram = Histogram()
    for value in nanoseconds:
        histogram.add(value)
    assert histogram.total == len(nanoseconds) == sum(histogram.counts.values())
    assert histogram.sum_ns == sum(nanoseconds)
    for value in nanoseconds:
        assert histogram.counts[bucket_of(value // 1000)] > 0


def test_a_quantile_is_bounded_by_the_bucket_that_holds_it():
    assert quantile_bounds_us({}, [0.5]) == [None]
    assert quantile_bounds_us({3: 1, 40: 0, 100: 1}, [0, 0.5, 0.51, 1]) == [4, 4, BOUNDS_US[100], BOUNDS_US[100]]
    assert quantiles_ms({3: 1, 40: 0, 100: 1}, [0.5, 1]) == [0.004, BOUNDS_US[100] / 1000]
