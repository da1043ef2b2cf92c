"""Comparing two answers to one request: their differences, against numpy's own arithmetic, and values without one."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.comparison import WORST, Comparison, Tolerance, class_outputs, compare

NONE = Tolerance(0.0, 0.0)


def f32(*values: float) -> Any:
    return np.array([values], np.float32)


def texts(*values: bytes) -> Any:
    found = np.empty((1, len(values)), np.object_)
    found[0, :] = values
    return found


def of(stable: Any, candidate: Any, tolerance: Tolerance = NONE, classes: tuple[str, ...] = ()) -> Comparison:
    return compare({"y": stable}, {"y": candidate}, tolerance, frozenset(classes))


def test_the_differences_are_those_of_numpy_over_outputs_larger_than_one_piece() -> None:
    generator = np.random.default_rng(11)
    stable = generator.standard_normal((3, 70_000)).astype(np.float32)
    candidate = stable + generator.standard_normal(stable.shape).astype(np.float32) * np.float32(1e-3)
    found = of(stable, candidate, Tolerance(1e-3, 1e-3))
    wide, other = stable.astype(np.float64), candidate.astype(np.float64)
    apart = np.abs(wide - other)
    assert found.max_absolute == apart.max()
    assert found.mean_absolute == pytest.approx(apart.mean())
    assert found.max_relative == (apart / np.maximum(np.abs(wide), np.abs(other))).max()
    beyond = int((~np.isclose(other, wide, rtol=1e-3, atol=1e-3)).sum())
    assert found.disagreed
    assert found.details == [f"output 'y': {beyond} of 210000 elements are beyond the tolerance"]
    assert not found.mismatched


def test_an_element_may_differ_by_the_absolute_and_the_relative_tolerance_together() -> None:
    assert not of(f32(100.0), f32(100.5), Tolerance(0.3, 0.003)).disagreed
    assert of(f32(100.0), f32(100.75), Tolerance(0.3, 0.003)).disagreed
    assert of(f32(0.0), f32(1e-6), NONE).disagreed
    assert of(f32(0.0), f32(1e-6), NONE).max_relative == 1.0


def test_the_score_says_how_many_times_the_tolerance_the_worst_element_is_off() -> None:
    assert of(f32(1.0, 1.0), f32(1.25, 2.0), Tolerance(0.125, 0.0)).score == 8.0
    assert of(f32(1.0), f32(1.0), Tolerance(0.125, 0.0)).score == 0.0


def test_nan_agrees_with_nan_alone_and_makes_no_figure_infinite() -> None:
    same = of(f32(math.nan, math.inf, 1.0), f32(math.nan, math.inf, 1.0))
    assert not same.disagreed
    for odd in (f32(1.0, 2.0), f32(math.inf, 2.0), f32(-math.inf, 2.0)):
        found = of(f32(math.nan, 2.0), odd)
        assert found.disagreed
        assert found.max_absolute == found.max_relative == 0.0
        assert found.score == WORST
        assert not found.mismatched
    assert of(f32(math.inf), f32(-math.inf)).disagreed


def test_numbers_too_large_to_subtract_count_without_a_warning() -> None:
    huge = np.array([1.7e308])
    found = of(huge, -huge)
    assert found.disagreed
    assert found.max_relative > 1


def test_large_integers_are_not_equal_by_rounding_nor_apart_when_equal() -> None:
    large = np.array([2**63 - 1, 5], np.int64)
    assert not of(large, large.copy()).disagreed
    apart = of(large, large - np.array([1, 2]))
    assert (apart.disagreed, apart.max_absolute) == (True, 2.0)


def test_names_shapes_and_datatypes_that_differ_are_mismatches() -> None:
    missing = compare({"y": f32(1.0), "z": f32(1.0)}, {"y": f32(1.0)}, NONE, frozenset())
    assert (missing.mismatched, missing.disagreed, missing.score) == (True, True, WORST)
    assert missing.details == ["output 'z' is missing in the candidate's answer"]
    more = compare({"y": f32(1.0)}, {"y": f32(1.0), "z": f32(1.0)}, NONE, frozenset())
    assert more.details == ["output 'z' is only in the candidate's answer"]
    shape = of(f32(1.0, 2.0), f32(1.0))
    assert shape.mismatched
    assert shape.details == ["output 'y' is [1, 2] of stable but [1, 1] of the candidate"]
    datatype = of(f32(1.0), np.array([[1.5]]))
    assert datatype.details[0] == "output 'y' is FP32 of stable but FP64 of the candidate"
    assert datatype.max_absolute == 0.5


def test_the_first_class_of_each_row_is_compared() -> None:
    stable = np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.4]], np.float32)
    candidate = np.array([[0.2, 0.8], [0.1, 0.9], [0.6, 0.4]], np.float32)
    found = of(stable, candidate, Tolerance(1.0, 0.0), ("y",))
    assert (found.top1_compared, found.top1_agreed) == (3, 2)
    assert not found.disagreed
    half = of(stable.astype(ml_dtypes.bfloat16), candidate.astype(ml_dtypes.bfloat16), NONE, ("y",))
    assert (half.top1_compared, half.top1_agreed) == (3, 2)


def test_a_difference_is_described_without_the_clients_answer() -> None:
    """Everybody who sees the rollout reads it; the answers are clients' data."""
    stable, candidate = np.array([[0, 0, 9.25]] * 2, np.float32), np.array([[0, 8.75, 0]] * 2, np.float32)
    rows, row = of(stable, candidate, classes=("y",)), of(stable[:1], candidate[:1], classes=("y",))
    assert rows.details[0] == "output 'y': the first class differs in 2 of 2 rows"
    assert row.details[0] == "output 'y': the first class differs"
    assert not [one for one in rows.details + row.details if "9.25" in one or "8.75" in one]


def test_outputs_with_labels_are_the_ones_with_classes_and_else_those_with_one_axis() -> None:
    config = ModelConfig()
    config.output.add(name="scores", dims=[10])
    config.output.add(name="image", dims=[3, 8, 8])
    config.output.add(name="embedding", dims=[64])
    assert class_outputs(config) == {"scores", "embedding"}
    config.output.add(name="exported", dims=[-1, 10])
    assert class_outputs(config) == {"scores", "embedding", "exported"}
    config.max_batch_size = 8
    assert class_outputs(config) == {"scores", "embedding"}
    config.output[0].label_filename = "labels.txt"
    assert class_outputs(config) == {"scores"}


def test_bytes_that_are_json_are_compared_by_their_numbers() -> None:
    stable = texts(b'{"cat": 0.75, "dog": 0.25}')
    near = of(stable, texts(b'{"dog": 0.375, "cat": 0.625}'), Tolerance(0.25, 0.0))
    assert not near.disagreed
    assert (near.max_absolute, near.top1_compared, near.top1_agreed) == (0.125, 1, 1)
    far = of(stable, texts(b'{"dog": 0.9, "cat": 0.1}'), Tolerance(0.25, 0.0))
    assert far.disagreed
    assert (far.top1_compared, far.top1_agreed) == (1, 0)
    assert of(stable, texts(b'{"cat": 0.75, "cow": 0.25}')).mismatched
    assert of(texts(b"[1, 2]"), texts(b"[1, 2, 3]")).mismatched
    assert of(texts(b'["a", true]'), texts(b'["a", 1]')).disagreed
    assert not of(texts(b"[1, 2]"), texts(b"[1.0, 2]")).disagreed


def test_other_bytes_are_compared_for_equality() -> None:
    assert not of(texts(b"\xff\x00", b"b"), texts(b"\xff\x00", b"b")).disagreed
    found = of(texts(b"a", b"b"), texts(b"a", b"c"))
    assert (found.disagreed, found.mismatched) == (True, False)
    assert found.details == ["output 'y': element 1 is not equal"]
