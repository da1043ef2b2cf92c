"""Smaller runs of benchmarks/load_cycles, many_models and large_tensors: the full ones stand in docs/benchmarks.md."""

from pathlib import Path

import pytest

from benchmarks import large_tensors, load_cycles, many_models

pytestmark = pytest.mark.long
# In its first cycles the allocator still takes some MB, now more, now fewer; a model that stayed each time would be 0.8.
SHORT_RUN_GROWTH = 0.15


@pytest.mark.parametrize("backend", load_cycles.MODELS)
def test_memory_stays_where_it_is_while_models_come_and_go(backend: str) -> None:
    found = load_cycles.measure(backend, 60)
    assert found.growth < SHORT_RUN_GROWTH, found.resident[::10]


@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_two_hundred_models_are_ready_and_listed_and_cost_nothing_while_idle(tmp_path: Path, mode: str) -> None:
    many_models.write_models(tmp_path, 200)
    result = many_models.measure(tmp_path, mode, idle_s=4.0, poll_s=2.0)
    assert result.idle_share < many_models.IDLE_SHARE, result


def test_a_large_tensor_costs_a_bounded_multiple_of_its_size() -> None:
    found = large_tensors.measure(128)
    assert [way for way, growth in found.items() if round(growth, 1) > large_tensors.LIMITS[way]] == [], found
