"""The JSON codec makes of any bytes a ServingError, or tensors no larger than they are; large ones are not copied."""

import json
from typing import Any

import numpy as np
import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.datatypes import DATATYPES, serialize_bytes
from serving.core.errors import Code, ServingError
from serving.core.response import InferenceResponse
from serving.extensions.shared_memory import SharedMemory
from serving.frontends.rest.infer_request import decode
from serving.frontends.rest.infer_response import encode
from serving.frontends.rest.json_input import SIMDJSON_FROM, numbers
from serving.frontends.shared.forwarded_headers import forward_headers

NO_REGIONS = SharedMemory(allowed=False)
FUZZ = settings(max_examples=300, deadline=None, database=None)

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["a", "b", ""]) | scalars
inputs = st.fixed_dictionaries(
    {},
    optional={
        "name": names,
        "datatype": st.sampled_from([*DATATYPES, "X"]) | scalars,
        "shape": st.lists(st.integers(-1, 4) | scalars, max_size=3) | values,
        "data": st.lists(scalars, max_size=8) | values,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 40) | scalars}) | values,
    },
)
bodies = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=3) | values},
    optional={"id": scalars, "parameters": values, "outputs": st.lists(values, max_size=2) | values},
)


def take(body: bytes, binary: bytes) -> None:
    try:
        request, _ = decode(body, binary, "model", "", NO_REGIONS)
    except ServingError as error:
        assert error.code in (Code.INVALID_ARG, Code.NOT_FOUND)  # noqa: PT017
        return
    for array in request.inputs.values():
        assert isinstance(array, np.ndarray)
        assert array.nbytes <= 16 * (len(body) + len(binary)) + 64


@FUZZ
@given(bodies, st.binary(max_size=64))
def test_any_json_is_refused_or_decoded(body: Any, binary: bytes) -> None:
    text = json.dumps(body).encode()
    take(text, binary)
    take(text[:-1] + b" " * SIMDJSON_FROM + text[-1:], binary)  # the same by the parser for large bodies


@FUZZ
@given(st.binary(max_size=200), st.binary(max_size=16))
def test_any_bytes_are_refused(body: bytes, binary: bytes) -> None:
    take(body, binary)
    take(body + b" " * SIMDJSON_FROM, binary)


@FUZZ
@given(
    st.sampled_from([name for name in DATATYPES if name != "BYTES"]),
    st.lists(st.integers(0, 5), max_size=4),
    st.binary(max_size=16),
)
def test_binary_tensors_survive_the_way_there_and_back(datatype: str, shape: list[int], prefix: bytes) -> None:
    row = DATATYPES[datatype]
    raw = np.arange(int(np.prod(shape)) * row.itemsize, dtype=np.uint8).tobytes()
    if datatype == "BOOL":
        raw = bytes(byte % 2 for byte in raw)
    described = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
    first = {"name": "p", "datatype": "UINT8", "shape": [len(prefix)], "parameters": {"binary_data_size": len(prefix)}}
    body = json.dumps({"inputs": [first, described], "parameters": {"binary_data_output": True}}).encode()
    request, header = decode(body, prefix + raw, "m", "", NO_REGIONS)
    array = request.inputs["x"]
    assert (array.dtype, list(array.shape), array.flags.aligned) == (row.dtype, shape, True)
    text, parts = encode(InferenceResponse("m", 1, "", {"x": array}), header)
    assert json.loads(text)["outputs"][0]["parameters"]["binary_data_size"] == len(raw)
    assert b"".join(parts) == raw


@FUZZ
@given(st.lists(st.binary(max_size=8), max_size=6))
def test_byte_strings_survive_the_way_there_and_back(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    raw = serialize_bytes(array)
    described = {
        "name": "x",
        "datatype": "BYTES",
        "shape": [len(elements)],
        "parameters": {"binary_data_size": len(raw)},
    }
    body = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    request, header = decode(body, raw, "m", "", NO_REGIONS)
    assert request.inputs["x"].tolist() == elements
    assert b"".join(encode(InferenceResponse("m", 1, "", request.inputs), header)[1]) == raw


def test_large_tensors_are_views_in_both_directions() -> None:
    buffer = np.zeros(1 << 20, np.uint8)
    described = {"name": "x", "datatype": "FP32", "shape": [1 << 18], "parameters": {"binary_data_size": 1 << 20}}
    body = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    request, header = decode(body, buffer.data, "m", "", NO_REGIONS)
    assert np.shares_memory(request.inputs["x"], buffer)
    _, parts = encode(InferenceResponse("m", 1, "", request.inputs), header)
    assert np.shares_memory(np.frombuffer(parts[0], np.uint8), buffer)


@pytest.mark.parametrize(
    ("datatype", "text"), [("FP32", b"[1.5, -2.25]"), ("INT64", b"[3, -4]"), ("UINT8", b"[0, 255]")]
)
def test_a_flat_list_of_numbers_is_read_as_one_buffer(datatype: str, text: bytes) -> None:
    """The slow way gives the same numbers, and so hid that the compiled module refused this one."""
    assert numbers(text, DATATYPES[datatype]).tolist() == json.loads(text)


def test_forwarded_headers_are_parameters_of_that_request_alone() -> None:
    described = {"name": "x", "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}}
    body = json.dumps({"inputs": [described], "parameters": {"mine": 1, "priority": 2, "sequence_id": "s"}}).encode()
    first, _ = decode(body, b"\0", "m", "", NO_REGIONS)
    forward_headers(re2.compile("mine"), [("mine", "2")], first)
    assert first.parameters == {"mine": "2"}
    second, _ = decode(body, b"\0", "m", "", NO_REGIONS)
    assert (second.parameters, second.priority, second.sequence.id) == ({"mine": 1}, 2, "s")


@pytest.mark.parametrize("text", ["naïve", '"quoted"\n', "\u2028", ""])
def test_the_id_comes_back_as_it_was(text: str) -> None:
    header, _ = encode(InferenceResponse("m", 3, text, {}), decode(b'{"inputs":[]}', b"", "m", "", NO_REGIONS)[1])
    answer = json.loads(header)
    assert answer.get("id", "") == text
    assert answer["model_version"] == "3"
