"""Figures have the spread of their windows, the parts of a latency add up, and a difference is told only beyond the spread."""

import math
from typing import Any

import pytest

from dashboard.loads.outcome import Outcome
from dashboard.loads.program import Window
from dashboard.measurements.comparison import difference
from dashboard.measurements.figures import figure, load_figures, split_of
from dashboard.measurements.plan import DEFAULTS, plan_of
from dashboard.measurements.statistics import counts_in
from dashboard.models.measurement import Figure, LoadFigures
from dashboard.shared.exceptions import Invalid

MS = 1_000_000


def outcome(per_second: float, p99_ms: float, **more: Any) -> Outcome:
    return Outcome(int(per_second), 1.0, more.pop("failures", 0), 1.0, 2.0, p99_ms, mean_ms=1.5, **more)


def test_a_figure_has_the_mean_and_the_interval_of_students_t() -> None:
    found = figure([10.0, 12.0, 14.0])
    assert found is not None
    assert found["value"] == 12.0
    assert found["spread"] == pytest.approx(4.303 * 2.0 / math.sqrt(3))


def test_a_figure_of_one_window_has_no_spread_and_of_none_does_not_exist() -> None:
    assert figure([3.0]) == {"value": 3.0, "spread": None}
    assert figure([math.nan]) is None


def test_the_parts_of_a_latency_add_up_to_it() -> None:
    grown = {
        ("success", "count"): 10,
        ("success", "ns"): 10 * 4 * MS,
        ("queue", "ns"): 10 * 1 * MS,
        ("compute_infer", "ns"): 10 * 2 * MS,
    }
    parts = split_of(5.0, grown)
    assert parts == {"queue": 1.0, "input": 0.0, "compute": 2.0, "output": 0.0, "other": 1.0, "wire": 1.0}
    assert sum(parts.values()) == 5.0
    assert split_of(5.0, {}) == {}


def test_the_statistics_of_triton_are_read_with_their_zeros_left_out() -> None:
    found = counts_in(
        {
            "inference_stats": {"success": {"count": "3", "ns": "600"}, "queue": {"count": 3}},
            "batch_stats": [{"batch_size": "2", "compute_infer": {"count": "1", "ns": "90"}}],
        }
    )
    assert found["success", "count"] == 3
    assert found["success", "ns"] == 600
    assert found["queue", "ns"] == 0
    assert found["batch", "2", "compute_infer", "ns"] == 90


def test_a_load_has_the_figures_of_its_windows_and_of_what_the_server_counted_between_them() -> None:
    windows = [
        Window(4, 0, False, outcome(50, 9.0)),
        Window(4, 1, False, outcome(100, 3.0, failures=2, reasons={"full": 2})),
        Window(4, 2, True, outcome(110, 5.0, failures=1, reasons={"full": 1}), 0.01),
    ]
    readings = [
        {
            ("success", "count"): count,
            ("success", "ns"): count * MS,
            ("batch", "4", "compute_infer", "count"): count // 4,
            ("batch", "4", "compute_infer", "ns"): count // 4 * MS,
        }
        for count in (40, 140, 240)
    ]
    found = load_figures(windows, readings)
    assert found["per_second"]["value"] == 105
    assert found["p99_ms"] is not None
    assert found["p99_ms"]["value"] == 4.0
    assert (found["windows"], found["stable"], found["failures"], found["reasons"]) == (2, True, 3, {"full": 3})
    assert found["warmup"] == {"per_second": 50, "p99_ms": 9.0}
    assert found["split"]["wire"] == {"value": 0.5, "spread": 0.0}
    assert found["batches"] == [{"size": 4, "executions": 50, "input": 0.0, "compute": 1.0, "output": 0.0}]


def figures_of(value: float, spread: float | None) -> LoadFigures:
    one = Figure(value=value, spread=spread)
    return {"load": 1.0, "p99_ms": one, "per_second": one}  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("p99_ms", (10, 0.1), (8, 0.1), "faster by 20 % ± 1.28 %"),
        ("p99_ms", (8, 0.1), (10, 0.1), "slower by 25 % ± 2 %"),
        ("per_second", (100, 1), (120, 1), "20 % ± 1.56 % more requests a second"),
        ("per_second", (120, 1), (100, 1), "16.7 % ± 1.08 % fewer requests a second"),
        ("p99_ms", (2, 0.01), (164, 1), "82 ± 0.647 times as long"),
        ("per_second", (100, 1), (250, 1), "2.5 ± 0.027 times as many requests a second"),
        ("p99_ms", (10, 1), (10.5, 1), "no difference beyond the spread"),
        ("p99_ms", (10, None), (20, 1), "too few windows to tell"),
    ],
)
def test_a_difference_is_told_with_its_spread(name: str, before: Any, after: Any, words: str) -> None:
    assert difference(name, figures_of(*before), figures_of(*after)).words == words


def test_a_plan_has_defaults_and_each_load_once() -> None:
    assert plan_of({}) == DEFAULTS
    assert plan_of({"loads": [4, 4, 1]})["loads"] == [4.0, 1.0]
    assert plan_of({"loop": "open", "loads": [0.5]})["loads"] == [0.5]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"where": "elsewhere"}, "where"),
        ({"loads": []}, "loads"),
        ({"loads": [1.5]}, "loads"),
        ({"loads": [float("nan")]}, "loads"),
        ({"loop": "open", "loads": [0]}, "loads"),
        ({"rows": 0}, "rows"),
        ({"most_windows": 2}, "most_windows"),
        ({"window_s": True}, "window_s"),
        ({"nonsense": 1}, None),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_at_its_field(given: dict[str, Any], field: str | None) -> None:
    with pytest.raises(Invalid) as refused:
        plan_of(given)
    assert [problem.field for problem in refused.value.problems] == ([field] if field else [])
