"""How a tensor stands in a trace file, where a client cannot show it."""

import ml_dtypes
import numpy as np

from serving.telemetry.traces.trace_tensors import MAX_ELEMENTS, MAX_TEXT, describe


def test_bf16_has_its_values() -> None:
    row = describe("x", np.array([[1.5, -2]], ml_dtypes.bfloat16))
    assert row == {"name": "x", "data": "1.5,-2.0", "shape": "1,2", "dtype": "BF16"}


def test_bytes_that_are_no_text_are_shown_all_the_same() -> None:
    assert describe("x", np.array([b"\xffd"], np.object_))["data"] == '"\\xffd"'


def test_a_tensor_without_elements_or_dimensions_has_its_shape() -> None:
    assert describe("x", np.zeros((0, 4), np.int32)) == {"name": "x", "data": "", "shape": "0,4", "dtype": "INT32"}
    assert describe("x", np.array(7, np.int64)) == {"name": "x", "data": "7", "shape": "", "dtype": "INT64"}


def test_elements_come_in_row_major_order_whatever_the_strides() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    assert describe("x", array)["data"] == "0,3,1,4,2,5"


def test_large_tensors_are_cut() -> None:
    row = describe("x", np.zeros((2, MAX_ELEMENTS), np.float64))
    assert (row["shape"], row["whole_shape"]) == (str(MAX_ELEMENTS), f"2,{MAX_ELEMENTS}")
    assert row["data"].count(",") == MAX_ELEMENTS - 1
    texts = describe("x", np.array([b"x" * (MAX_TEXT // 2)] * 3, np.object_))
    assert (texts["shape"], texts["whole_shape"]) == ("2", "3")
    assert len(texts["data"]) < MAX_TEXT + 100
