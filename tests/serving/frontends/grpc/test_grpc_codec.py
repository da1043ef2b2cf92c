"""ModelInfer messages <-> arrays, in every datatype, raw and typed; errors have Triton's words."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from serving.core.datatypes import DATATYPES, serialize_bytes
from serving.core.errors import Code, ServingError
from serving.core.request import InferenceRequest
from serving.core.response import InferenceResponse
from serving.extensions.shared_memory import SharedMemory
from serving.frontends.grpc.request_decoder import RequestDecoder
from serving.frontends.grpc.response_encoder import ResponseEncoder
from serving.frontends.shared.forwarded_headers import forward_headers

NO_REGIONS = SharedMemory(allowed=False)


def decode(message: pb.ModelInferRequest, decoder: RequestDecoder | None = None) -> InferenceRequest:
    return (decoder or RequestDecoder(NO_REGIONS)).decode(message.SerializeToString(), 0)


def request(*tensors: tuple[str, str, list[int]], **fields: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m", **fields)
    for name, datatype, shape in tensors:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    return message


def refusal(message: pb.ModelInferRequest, code: Code = Code.INVALID_ARG) -> str:
    with pytest.raises(ServingError) as caught:
        decode(message)
    assert caught.value.code is code
    return caught.value.message


def sample(datatype: str) -> np.ndarray:
    row = DATATYPES[datatype]
    if datatype == "BYTES":
        return np.array([[b"", b"abc"], [b"\x00\xff", "schön".encode()]], np.object_)
    if datatype == "BOOL":
        return np.array([[True, False], [False, True]])
    if row.dtype.kind in "iu":
        limits = np.iinfo(row.dtype)
        return np.array([[limits.min, limits.max], [0, 1]], row.dtype)
    return np.array([[0.5, -1.25], [3.0, 65504.0]]).astype(row.dtype)


def raw(array: np.ndarray) -> bytes:
    return serialize_bytes(array) if array.dtype == np.object_ else array.tobytes()


# -- requests --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("container", [bytes, bytearray])
def test_raw_contents_of_every_datatype_arrive_unchanged(datatype: str, container: Callable[[bytes], Any]) -> None:
    array = sample(datatype)
    message = request(("X", datatype, [2, 2]), raw_input_contents=[raw(array)])
    body = container(b"\0" * 5 + message.SerializeToString())
    decoded = RequestDecoder(NO_REGIONS).decode(body, 5).inputs["X"]
    assert decoded.dtype == DATATYPES[datatype].dtype
    assert decoded.flags.aligned
    assert decoded.tolist() == array.tolist()


@pytest.mark.parametrize("datatype", [name for name, row in DATATYPES.items() if row.contents])
def test_typed_contents_of_every_datatype_arrive_unchanged(datatype: str) -> None:
    array = sample(datatype)
    message = request(("X", datatype, [2, 2]))
    getattr(message.inputs[0].contents, DATATYPES[datatype].contents).extend(array.ravel().tolist())
    decoded = decode(message).inputs["X"]
    assert decoded.dtype == DATATYPES[datatype].dtype
    assert decoded.tolist() == array.tolist()


def test_an_output_that_is_named_twice_is_asked_for_once() -> None:
    message = request(("X", "FP32", [1]), raw_input_contents=[bytes(4)])
    for classes in (0, 2, 3):
        message.outputs.add(name="Y").parameters["classification"].int64_param = classes
    decoded = decode(message)
    assert decoded.requested_outputs == ("Y",)
    assert decoded.output_targets["Y"].rule.classes == 2


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_typed_contents(datatype: str) -> None:
    message = request(("X", datatype, [1]))
    message.inputs[0].contents.fp32_contents.append(1)
    assert "raw_input_contents" in refusal(message)


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT8", 128), ("INT8", -129), ("INT16", 40000), ("UINT8", 256), ("UINT16", 1 << 16)]
)
def test_typed_values_that_do_not_fit_the_datatype_are_refused(datatype: str, value: int) -> None:
    message = request(("X", datatype, [1]))
    getattr(message.inputs[0].contents, DATATYPES[datatype].contents).append(value)
    assert f"{datatype} holds" in refusal(message)


def test_several_inputs_take_the_raw_contents_in_order() -> None:
    arrays = [np.arange(3, dtype=np.int32), np.array([1.5], np.float64)]
    message = request(("A", "INT32", [3]), ("B", "FP64", [1]), raw_input_contents=[a.tobytes() for a in arrays])
    inputs = decode(message).inputs
    assert [inputs[name].tolist() for name in ("A", "B")] == [[0, 1, 2], [1.5]]


def test_scalars_and_empty_tensors_are_tensors_too() -> None:
    message = request(("A", "FP32", []), ("B", "INT64", [0, 5]), ("C", "BYTES", [0]))
    message.raw_input_contents.extend([np.float32(2).tobytes(), b"", b""])
    inputs = decode(message).inputs
    assert {name: array.shape for name, array in inputs.items()} == {"A": (), "B": (0, 5), "C": (0,)}


def test_everything_beside_the_tensors_is_read() -> None:
    message = request(("X", "FP32", [1]), model_version="3", id="call-7", raw_input_contents=[bytes(4)])
    message.outputs.add(name="Y")
    message.outputs.add(name="Z")
    message.parameters["sequence_id"].string_param = "abc"
    message.parameters["sequence_start"].bool_param = True
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].int64_param = 1000
    message.parameters["temperature"].double_param = 0.5
    message.parameters["style"].string_param = "calm"
    decoded = decode(message)
    assert (decoded.model_name, decoded.model_version, decoded.id) == ("m", "3", "call-7")
    assert decoded.requested_outputs == ("Y", "Z")
    assert decoded.sequence == ("abc", True, False)
    assert (decoded.priority, decoded.timeout_us) == (2, 1000)
    assert decoded.parameters == {"temperature": 0.5, "style": "calm"}


def test_requests_with_equal_heads_keep_their_own_data() -> None:
    decoder = RequestDecoder(NO_REGIONS)
    decoded = []
    for number in range(3):
        message = request(("X", "INT32", [1]), id=str(number), raw_input_contents=[np.int32(number).tobytes()])
        message.parameters["p"].int64_param = 1
        decoded.append(decode(message, decoder))
        forward_headers(re2.compile("p"), [("p", str(number))], decoded[-1])
    assert [(one.id, one.inputs["X"].tolist(), one.parameters) for one in decoded] == [
        (str(number), [number], {"p": str(number)}) for number in range(3)
    ]


def test_fields_may_come_in_any_order_and_unknown_ones_are_skipped() -> None:
    message = request(("X", "INT32", [1]), id="x", raw_input_contents=[np.int32(9).tobytes()])
    parts = [pb.ModelInferRequest(raw_input_contents=message.raw_input_contents), pb.ModelInferRequest(id="x")]
    message.ClearField("raw_input_contents")
    message.ClearField("id")
    shuffled = b"".join(part.SerializeToString() for part in (*parts, message))
    for body in (shuffled, shuffled + b"\xa0\x06\x01", shuffled + b"\x7a\x02ab"):
        decoded = RequestDecoder(NO_REGIONS).decode(body, 0)
        assert (decoded.id, decoded.inputs["X"].tolist()) == ("x", [9])


def both_contents() -> pb.ModelInferRequest:
    message = request(("X", "FP32", [1]), raw_input_contents=[bytes(4)])
    message.inputs[0].contents.fp32_contents.append(1)
    return message


def mixed_contents() -> pb.ModelInferRequest:
    message = request(("X", "INT32", [1]))
    message.inputs[0].contents.int_contents.append(1)
    message.inputs[0].contents.fp32_contents.append(1)
    return message


def with_parameter(key: str, **value: Any) -> pb.ModelInferRequest:
    message = request(("X", "FP32", [1]), raw_input_contents=[bytes(4)])
    message.parameters[key].CopyFrom(pb.InferParameter(**value))
    return message


REFUSED = {
    "raw and typed": (both_contents(), "contents field must not be specified when using raw_input_contents for 'X'"),
    "two typed fields": (mixed_contents(), "unexpected explicit tensor data"),
    "no data": (request(("X", "FP32", [1])), "unable to find data for input tensor 'X' for model 'm' in request."),
    "too much data": (request(("X", "FP32", [1]), raw_input_contents=[b"", b""]), "expected 1 raw_input_contents"),
    "too few bytes": (
        request(("X", "FP32", [2]), raw_input_contents=[bytes(4)]),
        "input byte size mismatch for input 'X' for model 'm'. Expected 8, got 4",
    ),
    "a huge shape": (request(("X", "FP32", [1 << 40, 1 << 40]), raw_input_contents=[bytes(4)]), "byte size mismatch"),
    "a huge shape of strings": (request(("X", "BYTES", [1 << 40]), raw_input_contents=[bytes(4)]), "cannot hold them"),
    "a huge empty shape": (request(("X", "FP32", [0, 1 << 62, 8]), raw_input_contents=[b""]), "impossible shape"),
    "too many dims": (request(("X", "FP32", [1] * 100), raw_input_contents=[bytes(4)]), "impossible shape"),
    "a negative dim": (request(("X", "FP32", [-1]), raw_input_contents=[bytes(4)]), "expected dims >= 0"),
    "an unknown datatype": (request(("X", "FP8", [1]), raw_input_contents=[bytes(1)]), "unknown datatype 'FP8'"),
    "an input twice": (
        request(("X", "INT8", [1]), ("X", "INT8", [1]), raw_input_contents=[b"a", b"b"]),
        "more than once",
    ),
    "a cut string": (request(("X", "BYTES", [1]), raw_input_contents=[b"\x05\0\0\0ab"]), "claims 5 bytes"),
    "sequence_id of the wrong type": (with_parameter("sequence_id", bool_param=True), "'sequence_id' parameter"),
    "sequence_start of the wrong type": (with_parameter("sequence_start", int64_param=1), "expected bool_param"),
    "priority of the wrong type": (with_parameter("priority", string_param="high"), "'priority' parameter"),
    "a negative priority": (with_parameter("priority", int64_param=-1), "expected value >= 0"),
    "a negative timeout": (with_parameter("timeout", int64_param=-1), "expected value >= 0"),
    "a reserved parameter": (with_parameter("triton_magic", bool_param=True), "reserved for Triton usage"),
    "a parameter without a value": (with_parameter("empty"), "invalid value type for 'empty' parameter"),
}


@pytest.mark.parametrize(("message", "words"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_request_is_refused_in_one_sentence(message: pb.ModelInferRequest, words: str) -> None:
    assert words in refusal(message)


@pytest.mark.parametrize(
    ("key", "words"), [("shared_memory_region", "'shared_memory_byte_size'"), ("classification", "'classification'")]
)
def test_half_an_extension_is_refused(key: str, words: str) -> None:
    message = request(("X", "FP32", [1]), raw_input_contents=[bytes(4)])
    target = message.inputs[0] if key == "shared_memory_region" else message.outputs.add(name="Y")
    target.parameters[key].string_param = "region"
    assert words in refusal(message)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_broken_messages_are_refused_and_nothing_else_happens(noise: bytes, position: int, byte: int) -> None:
    whole = bytearray(with_parameter("p", int64_param=5).SerializeToString())
    whole[position % len(whole)] = byte
    for body in (noise, bytes(whole), bytes(whole[: position % len(whole)])):
        code = Code.INVALID_ARG
        try:
            RequestDecoder(NO_REGIONS).decode(body, 0)
        except ServingError as error:
            code = error.code
        assert code in (Code.INVALID_ARG, Code.NOT_FOUND)


# -- responses -------------------------------------------------------------------------------------------------------
def encode(response: InferenceResponse, encoder: ResponseEncoder | None = None) -> pb.ModelInferResponse:
    parts, size = (encoder or ResponseEncoder()).encode(response)
    body = b"".join(parts)
    assert len(body) == size
    return pb.ModelInferResponse.FromString(body)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_outputs_of_every_datatype_are_sent_raw(datatype: str) -> None:
    array = sample(datatype)
    message = encode(InferenceResponse("m", 2, "id", {"Y": array}, {"p": True, "q": 1, "r": 0.5, "s": "t"}))
    assert (message.model_name, message.model_version, message.id) == ("m", "2", "id")
    assert (message.outputs[0].name, message.outputs[0].datatype, list(message.outputs[0].shape)) == (
        "Y",
        datatype,
        [2, 2],
    )
    assert message.raw_output_contents[0] == raw(array)
    parameters = {
        key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in message.parameters.items()
    }
    assert parameters == {"p": True, "q": 1, "r": 0.5, "s": "t"}


def test_responses_with_equal_names_and_shapes_keep_their_own_data() -> None:
    encoder = ResponseEncoder()
    for number, shape in ((1, (2,)), (2, (2,)), (3, (1, 2)), (4, (2,))):
        array = np.full(shape, number, np.float32)
        message = encode(InferenceResponse("m", 1, str(number), {"Y": array}), encoder)
        assert (message.id, list(message.outputs[0].shape)) == (str(number), list(shape))
        assert message.raw_output_contents[0] == array.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_large_view_that_is_not_contiguous_is_sent_in_row_major_order(dtype: Any) -> None:
    array = np.arange(200_000).astype(dtype).reshape(400, 500).T
    assert encode(InferenceResponse("m", 1, "", {"Y": array})).raw_output_contents[0] == array.tobytes()
    whole = np.ascontiguousarray(array)
    assert encode(InferenceResponse("m", 1, "", {"Y": whole})).raw_output_contents[0] == whole.tobytes()
