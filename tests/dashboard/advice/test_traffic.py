"""What follows from statistics alone: bursts or not, and the time of a batch of any size."""

from itertools import pairwise
from random import Random

import pytest

from dashboard.advice.simulation import Bursts, IndependentGaps, ServiceTime, Setting
from dashboard.advice.traffic import KNOWN_FROM, Traffic, possible_arrivals, service_times
from dashboard.metrics.usage import Usage
from tests.dashboard.advice.shapes import SHAPES, bursts, histogram, poisson, traffic

SERVICE = ServiceTime(4e6, 3e5, spread=0.05)


def gaps(times: list[int]) -> dict[int, int]:
    return histogram([after - before for before, after in pairwise(times)])


@pytest.mark.parametrize("shape", SHAPES)
def test_arrivals_have_the_gaps_that_were_seen(shape: str) -> None:
    seen = gaps(SHAPES[shape](200, 4000))
    for process in possible_arrivals(seen):
        times = process.times(4000, Random(1))
        assert times == sorted(times)
        assert times[-1] / 1e9 == pytest.approx(20, rel=0.08)


def test_only_bursts_are_taken_for_bursts() -> None:
    assert [type(one) for one in possible_arrivals(gaps(bursts(120, 4000)))] == [IndependentGaps, Bursts]
    assert [type(one) for one in possible_arrivals(gaps(poisson(120, 4000)))] == [IndependentGaps]
    assert [type(one) for one in possible_arrivals(gaps(SHAPES["steady"](120, 4000)))] == [IndependentGaps]


def test_bursts_have_the_length_that_was_seen() -> None:
    found = possible_arrivals(gaps(bursts(120, 4000, length=12)))[1]
    assert isinstance(found, Bursts)
    assert found.length == pytest.approx(12, rel=0.02)


def test_the_time_of_an_execution_is_fitted_to_the_batch_sizes() -> None:
    found = service_times(traffic(poisson(300, 6000), Setting(True, 16, delay_ns=20_000_000), SERVICE))
    assert not found.one_size
    for rows in (1, 4, 16):
        assert found.likely.mean_ns(rows) == pytest.approx(SERVICE.mean_ns(rows), rel=0.1)
        assert found.flat.mean_ns(rows) * 0.95 <= SERVICE.mean_ns(rows) <= found.steep.mean_ns(rows) * 1.05
    assert found.likely.spread == pytest.approx(0.05, abs=0.04)


def test_with_one_batch_size_any_growth_is_possible() -> None:
    found = service_times(traffic(poisson(100, 3000), Setting(False, 16), SERVICE))
    assert found.one_size
    assert found.flat.mean_ns(8) == pytest.approx(found.flat.mean_ns(1))
    assert found.steep.mean_ns(8) == pytest.approx(8 * found.steep.mean_ns(1))


def test_batch_sizes_that_are_rare_are_used_if_there_are_no_others() -> None:
    rare = dict.fromkeys((1, 2, 3), KNOWN_FROM - 1)
    usage = Usage(batches=rare, batch_ns={rows: count * rows * 1000 for rows, count in rare.items()}, compute={3: 57})
    assert service_times(Traffic(usage, 1.0)).likely.mean_ns(2) == pytest.approx(2000)


def test_missing_statistics_are_named() -> None:
    assert Traffic(Usage(success=412), 60).shortage.startswith("412 of 1,000 requests")
    assert Traffic(Usage(success=5000, gaps={1: 3}), 60).shortage.startswith("3 of 300 gaps")
    assert Traffic(Usage(success=5000, gaps={1: 300}, batch_ns={1: 5}), 60).shortage == ""
