"""NVIDIA's perf_analyzer runs against this server, where it is installed (`make bench-perf-analyzer` does that)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import perf_analyzer
from benchmarks.page import write_comparison, write_perf_analyzer
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


def test_each_benchmark_keeps_the_other_ones_part_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_perf_analyzer(page, "old\n")
    write_comparison(page, "# Benchmarks\n\ntable\n")
    write_perf_analyzer(page, "new\n")
    assert page.read_text() == "# Benchmarks\n\ntable\n\n# perf_analyzer\n\nnew\n"
    write_comparison(page, "# Benchmarks\n\nother\n")
    assert page.read_text() == "# Benchmarks\n\nother\n\n# perf_analyzer\n\nnew\n"
