"""Histograms of a server of another make count in the buckets that the history is stored in."""

from dashboard.metrics.feed import BucketMap
from repository.core.histogram import BOUNDS_US


def test_buckets_of_another_server_are_mapped_by_their_bounds():
    ours = BucketMap(BOUNDS_US)
    coarse = BucketMap(BOUNDS_US[7::8])
    assert ours.read({"3": 2, "100": 1}) == {3: 2, 100: 1}
    assert coarse.read({"0": 2, "12": 1}) == {7: 2, 103: 1}
