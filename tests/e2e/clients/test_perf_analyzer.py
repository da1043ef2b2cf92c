"""NVIDIA's perf_analyzer runs against this server, where it is installed (`make bench-perf-analyzer` does that)."""

from collections.abc import Iterator

import pytest

from benchmarks import perf_analyzer
from tests.support.serving_process import ServerProcess

needs_binary = pytest.mark.skipif(not perf_analyzer.installed(), reason="perf_analyzer is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with perf_analyzer.server() as process:
        yield process


@needs_binary
@pytest.mark.parametrize("case", perf_analyzer.CASES, ids=lambda case: case.name)
def test_perf_analyzer_measures(server: ServerProcess, case: perf_analyzer.Case) -> None:
    measured = perf_analyzer.measure(server, case, clients=2, window_ms=200)
    assert measured.per_second > 0
    assert measured.compute > 0
