"""A request whose arrays and id are read apart from the rest of the JSON is the same as one read whole, or is not read."""

import itertools
import json
import re
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.errors import ServingError
from serving.core.response import InferenceResponse
from serving.extensions.shared_memory import SharedMemory
from serving.frontends.rest import infer_request
from serving.frontends.rest.infer_header import CACHED_OUTLINES, InferHeader
from serving.frontends.rest.infer_request import decode
from serving.frontends.rest.infer_response import encode
from serving.frontends.rest.json_input import NotFlatError

# What json.dumps cannot write: members as pieces of text, so that keys come twice, escaped, or spaced.
numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False).map(lambda x: round(x, 3))
texts = st.sampled_from(["a", '"data":[1]', "]", '","data":[1],"', "é\\"])
elements = numbers | st.booleans() | texts | st.none()
TENSORS = {
    "FP64": numbers,
    "FP32": st.integers(-1000, 1000).map(lambda number: number / 4),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "UINT8": st.integers(0, 255),
    "BOOL": st.booleans(),
    "BYTES": texts,
}
keys = st.sampled_from(['"data"', '"data" ', '"d\\u0061ta"', '"x"', '"\\"data"', '"id"', '"shape"'])
strays = st.lists(
    st.tuples(keys, (st.lists(elements, max_size=2) | elements).map(json.dumps)).map(
        lambda pair: f"{pair[0]}:{pair[1]}"
    ),
    max_size=1,
)
IDS = ['"id":"one"', '"id": "\\u0041"', '"id":5', '"i\\u0064":"x"', '"parameters":{"id":"y"}', '"id":"one","id":"two"']


def sometimes(draw: st.DrawFn, rare: st.SearchStrategy[Any], usual: Any) -> Any:
    return draw(rare) if draw(st.integers(0, 5)) == 5 else usual


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    inputs = []
    for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True)):
        datatype = draw(st.sampled_from(sorted(TENSORS)))
        values = draw(st.lists(TENSORS[datatype], max_size=4))
        values = draw(st.sampled_from([values, [[value] for value in values], [[values]]]))
        data = sometimes(draw, st.lists(elements | st.lists(numbers, max_size=2), max_size=4), values)
        parts = [
            f'"name":"{name}"',
            f'"datatype":"{datatype}"',
            f'"shape":{sometimes(draw, st.just([2, 1]), [len(np.array(values, object).reshape(-1))])}',
            '"data":' + json.dumps(data),
            *sometimes(draw, strays, []),
        ]
        inputs.append("{" + ",".join(draw(st.permutations(parts))) + "}")
    parts = ['"inputs":[' + ",".join(inputs) + "]", draw(st.sampled_from(IDS)), *sometimes(draw, strays, [])]
    return ("{" + ",".join(draw(st.permutations(parts))) + "}").encode()


@settings(max_examples=300, deadline=None, database=None)
@given(bodies())
def test_a_body_read_apart_is_the_body_read_whole(body: bytes) -> None:
    for _ in range(2):  # unknown, and known
        try:
            with mock.patch.object(infer_request, "read_whole", side_effect=NotFlatError):
                request, _ = decode(body, b"", "m", "", SharedMemory(False))
        except NotFlatError:
            return
        except ServingError as error:
            with pytest.raises(ServingError, match=re.escape(error.message)):
                infer_request.read_whole(body)
            return
        header, identifier, arrays = infer_request.read_whole(body)
        assert (request.id, request.parameters) == (identifier, header.parameters)
        assert list(request.inputs) == [spec.name for spec in header.given]
        for one, other in zip(request.inputs.values(), arrays, strict=True):
            assert (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())


def body(data: str = "[1,2]", identifier: str = '"id":"a",', datatype: str = "INT32", before: str = "") -> bytes:
    tensor = f'{{{before}"name":"x","datatype":"{datatype}","shape":[2],"data":{data}}}'
    return f'{{{identifier}"inputs":[{tensor}]}}'.encode()


def read(content: bytes) -> tuple[InferHeader, str, list[Any]]:
    request, header = decode(content, b"", "m", "", SharedMemory(False))
    return header, request.id, request.inputs["x"].tolist()


def test_requests_that_differ_in_id_and_numbers_alone_share_a_header() -> None:
    first, *_ = read(body())
    for number in range(2 * CACHED_OUTLINES):
        header, identifier, values = read(body(f"[{number},-{number}]", f'"id": "é{number}",'))
        assert (identifier, values) == (f"é{number}", [number, -number])
        assert header is read(body(identifier='"id": "other",'))[0]
    assert read(body())[0] is first


def test_a_full_cache_forgets_one_outline_and_not_all() -> None:
    header, *_ = read(body(before='"first":0,'))
    newest, *_ = read(body(before='"second":0,'))
    for number in range(CACHED_OUTLINES - 1):
        read(body(before=f'"n{number}":0,'))
    assert read(body(before='"second":0,'))[0] is newest
    assert read(body(before='"first":0,'))[0] is not header


@pytest.mark.parametrize(
    "wrong",
    [
        body(identifier='"id":,'),
        body(identifier='"id":"a"b",'),
        body(identifier='"id":"\x01",'),
        body(identifier='"id":5,"id":"a"'),
        body(identifier='"id":["a"],'),
        body(data=""),
        body(data="]"),
        body(data="[1,2]]"),
        body(data="[1,2"),
        body(data='"]'),
        body(data="[1,2,]"),
        body(data="[01,2]"),
        body(data="[1,2.5]"),
        body(data="[1,true]", datatype="FP32").replace(b"1,", b"null,"),
        body(data="[true,false]"),
        body(data="[true,false]", datatype="FP64"),
        body(data="[1,0]", datatype="BOOL"),
        body(data="[1,2147483648]"),
        body(data="[1,[2]]"),
        body(data="[1,2,3]"),
    ],
)
def test_a_wrong_body_that_resembles_a_known_one_is_refused(wrong: bytes) -> None:
    for datatype in ("INT32", "FP32", "FP64", "BOOL"):
        for data in ("[1,2]", "[true,true]"):
            try:
                read(body(data, datatype=datatype))
            except ServingError:
                assert (datatype == "BOOL") != (data == "[true,true]")
    with pytest.raises(ServingError):
        read(wrong)


def test_an_array_in_another_place_shifts_none() -> None:
    """One input has its data under an escaped key, and an array that stands elsewhere says what a mark might be."""
    for stray, values in itertools.product(("[0]", "[1]", "[7]"), ("[0]", "[1]", "[7]")):
        content = (
            '{"inputs":[{"name":"a","datatype":"INT32","shape":[1],"data":[5]},'
            f'{{"name":"x","datatype":"INT32","shape":[1],"d\\u0061ta":{values}}}],"x":{{"data":{stray}}}}}'
        )
        assert read(content.encode())[2] == json.loads(values)


def test_answers_of_equal_headers_are_distinguished() -> None:
    """Everything in a response may vary where its header stays the same."""
    header, *_ = read(body())
    seen = set()
    for name, version, identifier, dtype, shape, output in itertools.product(
        ("m", "n"), (1, 2), ("", "id"), (np.int32, np.float32), ((2,), (2, 1)), ("y", "z")
    ):
        values = np.arange(2, dtype=dtype).reshape(shape)
        for array in (values, values + 1):
            text, parts = encode(InferenceResponse(name, version, identifier, {output: array}), header)
            assert parts == []
            answer = json.loads(text)
            assert (answer["model_name"], answer["model_version"]) == (name, str(version))
            assert answer.get("id", "") == identifier
            (one,) = answer["outputs"]
            assert (one["name"], one["datatype"]) == (output, "INT32" if dtype is np.int32 else "FP32")
            assert (one["shape"], one["data"]) == (list(shape), array.reshape(-1).tolist())
            seen.add(text)
    assert len(seen) == 2**7


def test_outputs_stand_in_the_order_of_their_own_response() -> None:
    """A model that is loaded again may have the same outputs in another order."""
    header, *_ = read(body())
    for names in (["y", "z"], ["z", "y"], ["z"], ["y", "z"]):
        outputs = {name: np.full(2, ord(name), np.int32) for name in names}
        text, _ = encode(InferenceResponse("m", 1, "", outputs), header)
        found = [(one["name"], one["data"]) for one in json.loads(text)["outputs"]]
        assert found == [(name, [ord(name)] * 2) for name in names]


def test_binary_texts_say_how_long_they_are() -> None:
    asked = '{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
    _, header = decode(asked.encode(), b"", "m", "", SharedMemory(False))
    for text in (b"", b"abc", b"abcdef"):
        array = np.array([text, b"x"], np.object_)
        content, parts = encode(InferenceResponse("m", 1, "", {"y": array}), header)
        assert json.loads(content)["outputs"][0]["parameters"]["binary_data_size"] == len(parts[0]) == len(text) + 9
