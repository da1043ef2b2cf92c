"""The gaps between the arrivals of a version's requests: from the times of its batches, and under load only a sample."""

import pytest

from repository.core.histogram import bucket_of
from serving.core.batch import Batch
from serving.telemetry.statistics import GAPS_OF, MAX_NOTED, ModelStatistics

MS = 1_000_000


@pytest.fixture
def statistics() -> ModelStatistics:
    return ModelStatistics("m", 1)


def execute(statistics: ModelStatistics, *arrived_ms: int, started_ms: int) -> None:
    """Count a batch of requests that arrived at these times."""
    batch = Batch([], len(arrived_ms))
    batch.started_ns, batch.ended_ns = started_ms * MS, (started_ms + 1) * MS
    waited = [(started_ms - one) * MS for one in arrived_ms]
    statistics.count_batch(batch, waited, [MS] * len(arrived_ms), len(arrived_ms))


def gaps(statistics: ModelStatistics) -> dict[int, int]:
    statistics.add_up_executions()
    return statistics.arrival_gaps.counts


def test_gaps_are_counted_within_batches_and_between_them(statistics: ModelStatistics) -> None:
    execute(statistics, 100, 103, started_ms=110)
    execute(statistics, 108, started_ms=112)
    assert gaps(statistics) == {bucket_of(3000): 1, bucket_of(5000): 1}
    execute(statistics, 115, started_ms=116)
    assert gaps(statistics) == {bucket_of(3000): 1, bucket_of(5000): 1, bucket_of(7000): 1}


def test_batches_that_end_in_another_order_are_sorted(statistics: ModelStatistics) -> None:
    execute(statistics, 104, started_ms=104)
    execute(statistics, 100, started_ms=100)
    assert gaps(statistics) == {bucket_of(4000): 1}
    execute(statistics, 102, started_ms=103)  # it ran longer on another instance
    assert statistics.arrival_gaps.total == 1


def test_an_execution_without_successful_requests_has_no_gap(statistics: ModelStatistics) -> None:
    execute(statistics, started_ms=100)
    assert gaps(statistics) == {}


def test_under_load_a_sample_of_the_gaps_is_counted(statistics: ModelStatistics) -> None:
    notes = 2 * GAPS_OF
    for number in range(notes * MAX_NOTED):
        execute(statistics, number + 1, started_ms=number + 1)
    assert statistics.execution_count == notes * MAX_NOTED
    assert statistics.arrival_gaps.counts == {bucket_of(1000): 2 * MAX_NOTED - 1}  # no gap before the first request
