"""The load parameter `slipway.golden` in the server: tensors of every datatype, and the parameters of a request."""

import json
import math
from typing import Any

import numpy as np
import pytest

from repository.core.tensors import read_tensor, tensor_json
from serving.core.datatypes import DATATYPES
from serving.core.errors import Code, ServingError
from serving.core.example_tensors import from_array, to_array
from serving.core.request import SequencePosition
from serving.frontends.rest.golden import read_checks

X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
ONE = {"name": "one", "request": {"inputs": [X]}, "expected": {"outputs": [X | {"name": "y"}]}}


def values_of(name: str) -> np.ndarray[Any, Any]:
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
def test_an_array_of_every_datatype_becomes_an_example_and_the_same_array_again(name: str) -> None:
    array = values_of(name)
    text = json.dumps(tensor_json(from_array("x", array)), allow_nan=False)
    found = to_array(read_tensor(json.loads(text)))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tolist() == array.tolist() if array.dtype.kind in "Oiub" else found.tobytes() == array.tobytes()


def test_a_request_is_read_with_its_parameters_outputs_and_time() -> None:
    parameters = {"priority": 2, "mine": "a", "sequence_id": 7, "sequence_start": True, "sequence_end": True}
    outputs = [{"name": "y", "parameters": {"classification": 2}}]
    request = {"inputs": [X], "outputs": outputs, "parameters": parameters}
    (found,) = read_checks(json.dumps([ONE | {"request": request, "seconds": 2.5}]), "m")
    asked = found.asked
    assert (asked.model_name, asked.requested_outputs, asked.priority) == ("m", ("y",), 2)
    assert asked.sequence == SequencePosition(7, start=True, end=True)
    assert asked.output_targets["y"].rule.classes == 2
    assert dict(asked.parameters) == {"mine": "a"}
    assert asked.inputs["x"].tolist() == [1.0]
    assert found.golden.seconds == 2.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"request": {"inputs": [X | {"data": [1, 2]}]}}, "golden request 'one': tensor 'x': shape [1] has 1 elements"),
        (
            {"request": {"inputs": [X], "parameters": {"priority": "high"}}},
            "golden request 'one': expected parameter 'priority' as a whole number",
        ),
        ({"seconds": 0}, "golden request 'one': expected 'seconds' as a number over 0 and at most 600"),
        ({"seconds": True}, "expected 'seconds'"),
        ({"name": 3}, "every golden request as an object with a name"),
    ],
)
def test_a_wrong_request_is_the_clients_mistake(change: dict[str, object], said: str) -> None:
    with pytest.raises(ServingError) as caught:
        read_checks(json.dumps([ONE | change]), "m")
    assert caught.value.code is Code.INVALID_ARG
    assert said in caught.value.message
