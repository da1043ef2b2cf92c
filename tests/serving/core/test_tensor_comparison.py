"""Whether outputs are as expected, of every datatype, and the sentence about what differs."""

import ml_dtypes
import numpy as np
import pytest

from serving.core.datatypes import DATATYPES
from serving.core.tensor_comparison import Tolerance, compare_outputs

EXACTLY = Tolerance(0.0, 0.0)
NAN, INF = float("nan"), float("inf")


def text(*values):
    return np.array(values, object)


def compare(expected, got, tolerance=EXACTLY):
    return compare_outputs({"y": expected}, {"y": got}, tolerance)


def differs(expected, got, tolerance=EXACTLY):
    found = compare(expected, got, tolerance)
    assert not found.equal
    return found.detail


@pytest.mark.parametrize("name", DATATYPES)
def test_equal_tensors_of_every_datatype_are_equal_and_others_are_not(name):
    dtype = DATATYPES[name].dtype
    if name == "BYTES":
        one, other = text(b"a", b"b"), text(b"a", b"c")
    else:
        one, other = np.array([0, 1]).astype(dtype), np.array([1, 1]).astype(dtype)
    assert compare(one, one.copy()).detail == "all values are equal"
    assert "; 1 of 2 values differ" in differs(one, other)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_floats_may_differ_by_the_absolute_and_the_relative_tolerance(dtype):
    one, other = np.array([100, 0.5], dtype), np.array([101, 0.5], dtype)
    assert not compare(one, other, Tolerance(0.0, 0.009)).equal
    assert compare(one, other, Tolerance(0.0, 0.011)).equal
    assert compare(one, other, Tolerance(1.0, 0.0)).equal
    assert compare(one, other, Tolerance(0.5, 0.006)).equal


@pytest.mark.parametrize("name", ["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"])
def test_whole_numbers_may_differ_by_the_absolute_tolerance_alone(name):
    dtype = DATATYPES[name].dtype
    one, other = np.array([100], dtype), np.array([101], dtype)
    assert not compare(one, other, Tolerance(0.0, 1.0)).equal
    assert compare(one, other, Tolerance(1.0, 0.0)).equal


@pytest.mark.parametrize("name", ["INT8", "UINT8", "INT64", "UINT64"])
def test_the_distance_of_the_widest_numbers_is_right(name):
    limits = np.iinfo(DATATYPES[name].dtype)
    said = differs(np.array([limits.min], limits.dtype), np.array([limits.max], limits.dtype), Tolerance(7, 0))
    distance = limits.max - limits.min
    assert f"got {limits.max}, expected {limits.min}, the largest difference is {distance:.6g}" in said
    assert "(allowed is 7)" in said


@pytest.mark.parametrize(
    ("expected", "got", "equal"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (1.0, NAN, False),
        (NAN, 1.0, False),
        (1.0, INF, False),
        (INF, 1.0, False),
        (0.0, -0.0, True),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_what_is_not_finite_equals_itself_alone(expected, got, equal, dtype):
    found = compare(np.array([expected], dtype), np.array([got], dtype), Tolerance(1e30, 1.0))
    assert found.equal is equal


def test_a_value_that_differs_is_told_with_its_place_and_the_largest_difference():
    one = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    other = one + np.array([[0, 0.25, 0], [0, 0, 1.5]], np.float32)
    assert differs(one, other, Tolerance(0.125, 0.0)) == (
        "output 'y' at [1, 2]: got 7.5, expected 6, the largest difference is 1.5 (allowed is 0.125); 2 of 6 values differ"
    )


def test_nan_for_a_number_is_told_before_smaller_differences():
    assert differs(np.array([1.0, 2.0]), np.array([1.5, NAN])).startswith("output 'y' at [1]: got nan, expected 2;")


def test_a_scalar_is_told_without_a_place():
    assert differs(np.float32(1.5).reshape(()), np.float32(1).reshape(())).startswith("output 'y': got 1, expected 1.5")


def test_texts_are_told_as_text_and_long_ones_are_cut():
    assert differs(text(b"dog", b"x"), text(b"cat", b"x")) == (
        "output 'y' at [0]: got 'cat', expected 'dog'; 1 of 2 values differ"
    )
    assert compare(text(b"dog"), text("dog")).equal
    said = differs(text(b"\xff" * 500), text(b"a"))
    assert "... (500 bytes)" in said
    assert len(said) < 200


def test_another_datatype_or_shape_is_told():
    one = np.zeros((2, 3), np.float32)
    assert differs(one, one.astype(np.float64)) == "output 'y' is FP64, expected FP32"
    assert differs(one, one[:1]) == "output 'y' has the shape [1, 3], expected [2, 3]"


def test_a_missing_output_is_told_with_those_that_came_and_others_do_not_matter():
    one = np.zeros(1, np.float32)
    said = compare_outputs({"y": one}, {"a": one, "b": one}, EXACTLY)
    assert said == (False, "output 'y' was not answered; the outputs are 'a', 'b'")
    assert compare_outputs({"a": one}, {"a": one, "b": one}, EXACTLY).equal


def test_empty_tensors_are_equal_where_their_shapes_are():
    assert compare(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).equal
    assert not compare(np.zeros((0, 3), np.float32), np.zeros((0, 4), np.float32)).equal


def test_equal_within_the_tolerance_says_how_far_apart():
    assert compare(np.array([1.0, 2.0]), np.array([1.0, 2.001]), Tolerance(0.01, 0)).detail == (
        "the largest difference is 0.001"
    )
