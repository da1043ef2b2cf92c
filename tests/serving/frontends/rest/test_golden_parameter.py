"""The load parameter `slipway.golden`: its tensors of every datatype, and what is refused of it."""

import json
import math

import ml_dtypes
import numpy as np
import pytest

from serving.core.datatypes import DATATYPES
from serving.core.errors import ServingError
from serving.core.tensor_comparison import Tolerance
from serving.frontends.rest.example_tensors import load_example, read_tensors, write_tensor
from serving.frontends.rest.golden import read_golden
from serving.frontends.rest.json_output import dump_json

X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
ONE = {"name": "one", "request": {"inputs": [X]}, "expected": {"outputs": [X | {"name": "y"}]}}


def refused(*items: object) -> str:
    with pytest.raises(ServingError) as caught:
        read_golden(json.dumps(items), "m")
    return caught.value.message


def values_of(name: str) -> np.ndarray:
    row = DATATYPES[name]
    if name == "BYTES":
        return np.array([[b"plain", "wide \u00e9".encode()], [b"", b"\xff\x00"]], object)
    if name == "BOOL":
        return np.array([[True, False]])
    if row.dtype.kind in "iu":
        limits = np.iinfo(row.dtype)
        return np.array([[limits.min, 1, limits.max]], row.dtype)
    return np.array([[0.1, -2.5, math.nan], [math.inf, -math.inf, 3.0]], row.dtype)


@pytest.mark.parametrize("name", DATATYPES)
def test_a_tensor_of_every_datatype_is_written_and_read_again(name: str) -> None:
    tensor = values_of(name)
    text = dump_json({"inputs": [write_tensor("x", tensor)]}).decode()
    assert "NaN," not in text.replace('"NaN"', "")  # JSON that every parser and database takes
    value = load_example(text)
    assert isinstance(value, dict)
    found = read_tensors(value)[1]["x"]
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    if tensor.dtype == object:
        assert found.tolist() == tensor.tolist()
    else:
        assert np.array_equal(found.astype(float), tensor.astype(float), equal_nan=True)
        assert tensor.dtype.kind in "iub" or found.tobytes() == tensor.tobytes()


def test_texts_that_are_utf8_stay_readable() -> None:
    assert write_tensor("x", np.array([b"caf\xc3\xa9"], object))["data"] == ["caf\u00e9"]
    assert write_tensor("x", np.array([b"\xff"], object))["base64"] == "AQAAAP8="


def test_the_tokens_of_json_that_is_none_are_read_too() -> None:
    text = json.dumps([ONE | {"expected": {"outputs": [X | {"name": "y", "data": [math.nan]}]}}])
    assert "NaN" in text
    assert np.isnan(read_golden(text, "m")[0].expected["y"]).all()


def test_a_request_is_read_with_its_parameters_outputs_and_tolerance() -> None:
    request = {"id": "7", "inputs": [X], "outputs": [{"name": "y"}], "parameters": {"priority": 2, "mine": "a"}}
    text = json.dumps([ONE | {"request": request, "tolerance": {"absolute": 1}, "seconds": 2.5}])
    (found,) = read_golden(text, "m")
    asked = found.asked
    assert (asked.model_name, asked.id, asked.requested_outputs, asked.priority) == ("m", "7", ("y",), 2)
    assert dict(asked.parameters) == {"mine": "a"}
    assert (found.tolerance, found.seconds) == (Tolerance(1.0, 1e-3), 2.5)


def test_half_precision_is_read_from_numbers_and_from_binary_data() -> None:
    value = np.array([1.5], ml_dtypes.bfloat16)
    for one in ({"data": [1.5]}, {"base64": "wD8="}):
        tensor = {"name": "x", "datatype": "BF16", "shape": [1], **one}
        assert read_tensors({"inputs": [tensor]})[1]["x"] == value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"request": 3}, "expected 'request' to be an object"),
        ({"request": {}}, "expected 'inputs' to be an array of objects"),
        ({"request": {"inputs": [3]}}, "expected each of 'inputs' to be an object"),
        ({"request": {"inputs": [X | {"data": [1, 2]}]}}, "shape [1] has 1 elements, but 'data' has 2"),
        ({"request": {"inputs": [X | {"base64": "AAAA"}]}}, "either 'data' or 'base64'"),
        ({"request": {"inputs": [{**X, "data": None} | {"data": "x"}]}}, "expected 'data' to be an array"),
        (
            {"request": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "base64": "AAA="}]}},
            "needs 4 bytes, its 'base64' has 2",
        ),
        (
            {"request": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "base64": "A"}]}},
            "expected 'base64' to be the tensor's binary data",
        ),
        (
            {
                "request": {
                    "inputs": [
                        {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
                    ]
                }
            },
            "holds its tensors itself",
        ),
        (
            {
                "request": {
                    "inputs": [
                        {
                            "name": "x",
                            "datatype": "FP32",
                            "shape": [1],
                            "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4},
                        }
                    ]
                }
            },
            "holds its tensors itself",
        ),
        (
            {"request": {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}},
            "leave out classification",
        ),
        ({"expected": {}}, "'outputs', at least one"),
        ({"expected": {"outputs": []}}, "'outputs', at least one"),
        ({"expected": {"outputs": [X | {"shape": [2]}]}}, "expected outputs: output 'x': shape [2] has 2 elements"),
        ({"tolerance": {"absolute": -1}}, "expected 'absolute' to be a number of at least 0"),
        ({"tolerance": {"relative": True}}, "expected 'relative' to be a number"),
        ({"tolerance": {"percent": 1}}, "not 'percent'"),
        ({"seconds": 0}, "expected 'seconds' to be a number over 0 and at most 600"),
        ({"seconds": "1"}, "expected 'seconds'"),
        ({"model": "x"}, "not 'model'"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_with_its_name(change: dict[str, object], said: str) -> None:
    message = refused(ONE, ONE | {"name": "two"} | change)
    assert message.startswith("golden request 'two': ")
    assert said in message


def test_what_is_no_list_of_requests_is_refused() -> None:
    assert refused(3) == "golden request 0: expected an object with a 'name'"
    assert refused(*[ONE] * 1001) == "expected at most 1000 golden requests, got 1001"
    for text in ("{}", "3"):
        with pytest.raises(ServingError, match="to be a list of golden requests"):
            read_golden(text, "m")
    for text in ("", "[NaN", "[" * 100_000 + "NaN"):
        with pytest.raises(ServingError, match=r"slipway\.golden': it is not JSON"):
            read_golden(text, "m")
