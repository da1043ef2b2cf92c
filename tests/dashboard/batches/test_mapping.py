"""Columns are proposed for the inputs of a model, and values become tensors."""

from typing import Any

import pytest

from dashboard.batches.formats.table import Row
from dashboard.batches.mapping import mapping_problems, proposed_inputs, proposed_outputs, with_columns
from dashboard.batches.sending.requests import Fault, ready, request_of
from dashboard.models.batch import BatchInput
from dashboard.models.version import Signature
from dashboard.shared.exceptions import Invalid


def signature(*inputs: tuple[str, str, list[int]]) -> Signature:
    rows: Any = [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in inputs]
    return {"inputs": rows, "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}]}


def columns_of(found: list[BatchInput]) -> dict[str, list[str]]:
    return {row["name"]: row["columns"] for row in found}


@pytest.mark.parametrize(
    ("inputs", "columns", "expected"),
    [
        ([("x", "FP32", [-1, 4])], ["id", "X"], {"x": ["X"]}),
        ([("x", "FP32", [-1, 3])], ["id", "x_2", "x_10", "x_1"], {"x": ["x_1", "x_2", "x_10"]}),
        ([("x", "FP32", [-1, 3])], ["a", "b", "c"], {"x": ["a", "b", "c"]}),
        ([("text", "BYTES", [-1, 1])], ["review"], {"text": ["review"]}),
        ([("a", "FP32", [-1, 1]), ("b", "FP32", [-1, 2])], ["a", "u", "v"], {"a": ["a"], "b": ["u", "v"]}),
        ([("x", "FP32", [-1, 4])], ["a", "b"], {"x": []}),
    ],
)
def test_columns_are_proposed_by_name_and_by_number(inputs: Any, columns: list[str], expected: Any) -> None:
    assert columns_of(proposed_inputs(signature(*inputs), columns, batched=True)) == expected


def test_an_input_without_a_column_is_named_and_can_be_given_one() -> None:
    declared = signature(("x", "FP32", [-1, 4]))
    found = proposed_inputs(declared, ["a", "b"], batched=True)
    assert mapping_problems(found, declared) == ["input 'x' (FP32, [4]) needs a column: choose one"]
    assert mapping_problems(with_columns(found, {"x": ["a"]}, ["a", "b"]), declared) == []
    two = with_columns(found, {"x": ["a", "b"]}, ["a", "b"])
    assert mapping_problems(two, declared) == ["input 'x' (FP32, [4]) needs 4 columns, and has 2"]
    with pytest.raises(Invalid, match="no column 'c'; it has a, b"):
        with_columns(found, {"x": ["c"]}, ["a", "b"])
    with pytest.raises(Invalid, match="no input 'z'; its inputs are x"):
        with_columns(found, {"z": ["a"]}, ["a", "b"])


def test_an_output_never_takes_the_name_of_a_column() -> None:
    outputs = proposed_outputs(signature(), ["y", "y_out"], batched=True)
    assert [(row["column"], row["is_list"]) for row in outputs] == [("y_out_out", False)]


def given(datatype: str, shape: list[int], *columns: str) -> BatchInput:
    return {"name": "x", "datatype": datatype, "shape": shape, "columns": list(columns or ("c",))}


@pytest.mark.parametrize(
    ("row", "one", "shape", "content"),
    [
        ("3", given("INT32", [1]), (1,), b"\x03\0\0\0"),
        ("3.0", given("UINT8", [1]), (1,), b"\x03"),
        ("[1, 2]", given("UINT8", [2]), (2,), b"\x01\x02"),
        ([[1, 2], [3, 4]], given("UINT8", [-1, -1]), (2, 2), b"\x01\x02\x03\x04"),
        ([1, 2, 3, 4], given("UINT8", [-1, 2]), (2, 2), b"\x01\x02\x03\x04"),
        ("yes", given("BOOL", [1]), (1,), b"\x01"),
        ("ä", given("BYTES", [1]), (1,), b"\x02\0\0\0\xc3\xa4"),
        ({"b64": "/w=="}, given("BYTES", [1]), (1,), b"\x01\0\0\0\xff"),
        ("NaN", given("FP16", [1]), (1,), b"\x00\x7e"),
    ],
)
def test_a_value_becomes_a_tensor(row: Any, one: BatchInput, shape: tuple[int, ...], content: bytes) -> None:
    found = ready(0, Row({"c": row}), [one])
    assert (found.shapes, found.contents) == ((shape,), (content,))


@pytest.mark.parametrize(
    ("row", "one", "reason"),
    [
        ("word", given("FP32", [1]), "'x': expected FP32"),
        ("", given("FP32", [1]), "'x' is empty"),
        (None, given("FP32", [1]), "the row has no 'c'"),
        ("300", given("UINT8", [1]), "'x': a number does not fit into UINT8"),
        ("1.5", given("INT8", [1]), "'x': expected INT8"),
        ("[1, 2, 3]", given("FP32", [2]), r"'x': expected \[2\], but the row has \[3\]"),
        ([[1], [1, 2]], given("FP32", [-1]), "not equally long"),
        ("[1, 2", given("FP32", [2]), "'x': expected a list as JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_a_fault_of_its_row(row: Any, one: BatchInput, reason: str) -> None:
    with pytest.raises(Fault, match=reason):
        ready(0, Row({"c": row}), [one])


def test_rows_share_a_request_in_binary_form() -> None:
    one = given("UINT8", [2], "a", "b")
    rows = [ready(at, Row({"a": at, "b": 7}), [one]) for at in range(3)]
    body, headers = request_of(rows, [one], batched=True, priority=2)
    head = body[: int(headers["Inference-Header-Content-Length"])]
    assert b'"shape":[3,2]' in head
    assert b'"priority":2' in head
    assert body[len(head) :] == b"\0\x07\x01\x07\x02\x07"
