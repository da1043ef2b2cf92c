"""What `make bench-instructions` compares: the record has each path, and a tenth more is a fault."""

import importlib

import pytest

from benchmarks.instructions import record
from benchmarks.instructions.cases import CASES
from benchmarks.instructions.under_valgrind import BOUNDS

RECORDED = record.Figures("CPython 3.11.7, GCC 12.2.0", 1000, {"JSON": 400_000, "gRPC": 300_000})


@pytest.mark.parametrize("compiled", [False, True])
def test_every_path_has_a_recorded_figure(compiled: bool) -> None:
    assert list(record.read(compiled).paths) == [case.name for case in CASES]


def test_the_bounds_that_are_stretched_under_valgrind_exist() -> None:
    found = {name: getattr(importlib.import_module(module), name, None) for module, name in BOUNDS}
    assert [name for name, bound in found.items() if not isinstance(bound, int | float)] == []


def test_a_path_that_costs_more_than_a_tenth_more_is_a_fault() -> None:
    expected = record.expected_here(RECORDED, yardstick=1000)
    assert record.faults({"JSON": 439_000, "gRPC": 300_000}, expected) == []
    (fault,) = record.faults({"JSON": 441_000, "gRPC": 300_000}, expected)
    assert fault == "JSON: 441,000 instructions for each request, 10% more than recorded"


def test_figures_of_another_build_of_python_are_scaled_by_the_yardstick() -> None:
    assert record.expected_here(RECORDED, yardstick=900) == {"JSON": 360_000, "gRPC": 270_000}


def test_a_path_without_a_figure_and_a_figure_without_a_path_are_faults() -> None:
    faults = record.faults({"JSON": 400_000, "HTTP/3": 1}, record.expected_here(RECORDED, yardstick=1000))
    assert faults == ["HTTP/3: no figure is recorded", "gRPC: recorded, but no such path is counted"]
