"""Golden requests: every tensor is kept and sent exactly, and the tolerance means the same to both programs."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repository.core.errors import InvalidExample
from repository.core.golden import Tolerance, compare, read_golden, read_request, request_body, request_json
from repository.core.tensors import FLOATS, Tensor, from_binary, read_tensor, tensor_json, to_binary

NUMPY = {
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "INT8": np.int8,
}
ELEMENTS = {
    "BOOL": st.booleans(),
    "BYTES": st.binary(max_size=8),
    "UINT64": st.integers(0, 2**64 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "INT8": st.integers(-128, 127),
    "FP16": st.floats(width=16),
    "FP32": st.floats(width=32),
    "FP64": st.floats(),
    "BF16": st.sampled_from([0.0, -1.5, 3.140625, float("nan"), float("inf"), 1.1754943508222875e-38]),
}


def tensor(data: list[Any], datatype: str = "FP32", **more: Any) -> Tensor:
    return read_tensor({"name": "y", "datatype": datatype, "shape": [len(data)], "data": data, **more})


def same(one: Tensor, other: Tensor) -> bool:
    return repr(one) == repr(other)  # NaN is not equal to itself


@given(st.data(), st.sampled_from(sorted(ELEMENTS)))
def test_a_tensor_of_any_datatype_comes_back_exactly(data: st.DataObject, datatype: str) -> None:
    elements = data.draw(st.lists(ELEMENTS[datatype], max_size=6))
    kept = Tensor(
        "x", datatype, (len(elements),), from_binary("x", datatype, to_binary(Tensor("x", datatype, (), elements)))
    )
    text = json.dumps(tensor_json(kept), allow_nan=False)
    assert same(read_tensor(json.loads(text)), kept)
    if datatype in NUMPY:
        assert to_binary(kept) == np.array(elements, NUMPY[datatype]).tobytes()


def test_a_number_has_no_more_digits_than_it_needs() -> None:
    for datatype in ("FP16", "FP32", "FP64"):
        assert tensor_json(tensor([0.1, -2.5], datatype))["data"] == [0.1, -2.5]
    largest = 3.4028234663852886e38
    assert read_tensor(tensor_json(tensor([largest]))).elements == [largest]


@given(st.lists(st.floats(width=32), min_size=1, max_size=6), st.lists(st.floats(width=32), min_size=1, max_size=6))
def test_the_tolerance_is_that_of_numpys_isclose(wanted: list[float], came: list[float]) -> None:
    came = [*came, *wanted][: len(wanted)]
    expected, got = (Tensor("y", "FP32", (len(wanted),), elements) for elements in (wanted, came))
    verdict = compare([expected], {"y": got}, Tolerance(absolute=0.5, relative=0.25))
    assert verdict.passed == np.allclose(came, wanted, rtol=0.25, atol=0.5, equal_nan=True)


def test_the_worst_element_is_named_with_its_place_and_how_many_differ() -> None:
    expected = read_tensor({"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]})
    got = Tensor("y", "FP32", (2, 2), [1.0, 2.5, 3.1, 4.0])
    verdict = compare([expected], {"y": got}, Tolerance())
    assert verdict.detail == (
        "output 'y' is 2.5 at [0, 1], expected 2, the largest difference is 0.5; 2 of 4 elements differ by more than is allowed"
    )
    assert verdict.outputs[0].largest == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("datatype", "wanted", "came", "passed"),
    [
        ("INT64", 1000, 1001, False),
        ("INT64", 2**62, 2**62 + 1, False),
        ("BYTES", "seven", "seven", True),
        ("BYTES", "seven", "nine", False),
        ("BOOL", True, False, False),
        ("FP32", "NaN", "NaN", True),
        ("FP32", "NaN", 1.0, False),
        ("FP32", "Infinity", "-Infinity", False),
        ("FP32", 0.1, 0.1, True),
    ],
)
def test_a_relative_tolerance_is_for_numbers_with_a_point_alone(
    datatype: str, wanted: Any, came: Any, passed: bool
) -> None:
    tolerance = Tolerance(absolute=0, relative=0.5)
    assert compare([tensor([wanted], datatype)], {"y": tensor([came], datatype)}, tolerance).passed == passed


def test_integers_may_be_apart_by_the_absolute_tolerance() -> None:
    assert compare([tensor([7], "UINT8")], {"y": tensor([8], "UINT8")}, Tolerance(absolute=1)).passed


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ({}, "the answer has no output 'y'; it has none"),
        ({"y": tensor([1.0], "FP64")}, "output 'y' has datatype FP64, expected FP32"),
        ({"y": tensor([1.0, 2.0])}, "output 'y' has shape [2], expected [1]"),
    ],
)
def test_an_answer_of_another_form_fails_with_the_difference(got: dict[str, Tensor], said: str) -> None:
    assert compare([tensor([1.0])], got, Tolerance()).detail == said


def test_values_that_json_cannot_carry_are_sent_behind_it() -> None:
    png = b"\x89PNG"
    rows = [
        {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]},
        {"name": "h", "datatype": "FP16", "shape": [2], "data": [1, 0.5]},
        {"name": "n", "datatype": "FP32", "shape": [1], "data": ["NaN"]},
        {"name": "p", "datatype": "BYTES", "shape": [1], "base64": base64.b64encode(b"\x04\0\0\0" + png).decode()},
    ]
    asked = {"sequence_id": 7, "slipway_timing": True, "binary_data_output": False}
    request = read_request({"id": "a", "inputs": rows, "parameters": asked})
    assert request_json(request) == {"inputs": rows, "parameters": {"sequence_id": 7}} | {
        "inputs": [{**rows[0], "data": [1.0, 2.0]}, {**rows[1], "data": [1.0, 0.5]}, *rows[2:]]
    }
    text, binary = request_body(request)
    head = json.loads(text)
    assert head["parameters"] == {"sequence_id": 7, "binary_data_output": True}
    assert [row.get("parameters") for row in head["inputs"]] == [
        None,
        {"binary_data_size": 4},
        {"binary_data_size": 4},
        {"binary_data_size": 8},
    ]
    assert binary == np.array([1, 0.5], np.float16).tobytes() + np.float32("nan").tobytes() + b"\x04\0\0\0" + png


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "expected every tensor as an object with a name, a datatype, a shape and its data"),
        ({"datatype": "FP31"}, "tensor 'x': expected a datatype of"),
        ({"shape": [-1]}, "tensor 'x': expected its shape as a list of whole numbers from 0, got [-1]"),
        ({"shape": [3]}, "tensor 'x': shape [3] has 3 elements, but 2 are given"),
        ({"data": None}, "tensor 'x': expected its data as a list"),
        ({"data": [1, "two"]}, "tensor 'x': 'two' is no number of FP32"),
        ({"data": [1, 1e40]}, "tensor 'x': a number does not fit into FP32"),
        ({"datatype": "INT8", "data": [1, 128]}, "tensor 'x': a number does not fit into INT8"),
        ({"datatype": "INT8", "data": [1, 1.5]}, "tensor 'x': 1.5 is no number of INT8"),
        ({"datatype": "BOOL", "data": [1, 2]}, "tensor 'x': expected true and false, as BOOL needs"),
        ({"datatype": "BYTES", "data": ["a", 1]}, "tensor 'x': expected texts, as BYTES needs"),
        ({"base64": "AAAA"}, "tensor 'x': expected its elements as 'data' or as 'base64'"),
    ],
)
def test_a_wrong_tensor_is_refused_in_one_sentence(row: dict[str, Any], said: str) -> None:
    good = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    with pytest.raises(InvalidExample) as caught:
        read_tensor({**good, **row} if row else row)
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [("*", "expected base64"), ("AAAAAAA=", "does not end with an element of FP32"), ("AAAA", "does not end with")],
)
def test_wrong_base64_is_refused(content: str, said: str) -> None:
    with pytest.raises(InvalidExample, match=said):
        read_tensor({"name": "x", "datatype": "FP32", "shape": [1], "base64": content})


def test_a_list_of_golden_requests_is_read_with_its_tolerances() -> None:
    row = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    text = json.dumps([{"name": "one", "request": {"inputs": [row]}, "expected": {"outputs": [row]}}])
    (golden,) = read_golden(text)
    assert (golden.name, golden.tolerance) == ("one", Tolerance(0.0, 1e-3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "golden requests are not JSON"),
        ("{}", "expected golden requests as a list"),
        ("[{}]", "expected every golden request as an object with a name"),
        ('[{"name": "a"}]', "golden request 'a': expected a request as an object with 'inputs'"),
        ("[" + ",".join(["{}"] * 51) + "]", "expected golden requests as a list of at most 50"),
        (f'["{"x" * (9 << 20)}"]', "expected golden requests of at most 8388608 bytes together"),
    ],
)
def test_a_wrong_list_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InvalidExample) as caught:
        read_golden(text)
    assert caught.value.message.startswith(said)


def test_every_float_has_digits_that_tell_two_numbers_apart() -> None:
    assert {"FP16", "BF16", "FP32", "FP64"} == FLOATS


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"a": None}},
        {"parameters": {"a": {"b": 1}}},
        {"parameters": {"a": 10**400}},
        {"parameters": {"a": "\0"}},
        {"parameters": {"\0": 1}},
        {"parameters": {"priority": -1}},
        {"parameters": {"timeout": "soon"}},
        {"parameters": {"sequence_start": 1}},
        {"parameters": {"sequence_id": 1.5}},
        {"parameters": {"triton_final_response": True}},
        {"outputs": [{"name": ""}]},
        {"outputs": [{"name": "y\0"}]},
        {"outputs": [{"name": "y", "parameters": {"classification": -1}}]},
        {"outputs": [{"name": "y", "parameters": {"classification": "all"}}]},
        {"inputs": [{"name": "x\0", "datatype": "INT8", "shape": [0], "data": []}]},
    ],
)
def test_parameters_that_a_server_or_a_database_would_refuse_are_not_kept(more: dict[str, Any]) -> None:
    inputs = [{"name": "x", "datatype": "INT8", "shape": [0], "data": []}]
    with pytest.raises(InvalidExample):
        read_request({"inputs": inputs, **more})


def test_parameters_that_v2_has_are_kept() -> None:
    parameters = {
        "a": "b",
        "c": 1.5,
        "d": True,
        "e": 2**64 - 1,
        "priority": 0,
        "sequence_id": "s",
        "sequence_end": True,
    }
    inputs = [{"name": "x", "datatype": "INT8", "shape": [0], "data": []}]
    assert read_request({"inputs": inputs, "parameters": parameters}).parameters == parameters
    [large] = read_request({"inputs": inputs, "parameters": {"a": 10**30}}).parameters.values()
    assert repr(large) == "1e+30", "as PostgreSQL gives it back"
