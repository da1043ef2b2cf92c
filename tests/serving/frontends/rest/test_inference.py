"""Inference over HTTP with the stock client and with bare JSON: every datatype, JSON and binary data in any mix."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from serving.core.datatypes import DATATYPES
from tests.serving.frontends.raw_http import RawClient, infer_body, tensor
from tests.support.serving_process import ServerProcess

SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "BYTES": [b"", "grüße".encode(), b"a" * 300],
    "UINT64": [0, 1, 2**64 - 1],
    "INT64": [-(2**63), 0, 2**63 - 1],
    "UINT8": [0, 7, 255],
    "FP32": [1.5, -2.25, 3e30],
    "FP64": [1.1, -2.25, 1e300],
}
BINARY_ONLY = ("FP16", "BF16")


@pytest.fixture(scope="module")
def client(http_server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(http_server.http) as client:
        yield client


def sample(datatype: str) -> np.ndarray:
    return np.array(SAMPLES.get(datatype, [1, 2, 3]), dtype=DATATYPES[datatype].dtype).reshape(1, 3)


def ask(client: triton.InferenceServerClient, datatype: str, binary_in: bool, binary_out: bool) -> np.ndarray:
    array = sample(datatype)
    source = triton.InferInput("INPUT0", list(array.shape), datatype)
    source.set_data_from_numpy(array, binary_data=binary_in)
    wanted = triton.InferRequestedOutput("OUTPUT0", binary_data=binary_out)
    return client.infer(f"identity_{datatype.lower()}", [source], outputs=[wanted]).as_numpy("OUTPUT0")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_goes_and_comes_as_binary_data(client: triton.InferenceServerClient, datatype: str) -> None:
    assert np.array_equal(ask(client, datatype, binary_in=True, binary_out=True), sample(datatype))


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in BINARY_ONLY])
@pytest.mark.parametrize(("binary_in", "binary_out"), [(False, False), (True, False), (False, True)])
def test_every_datatype_but_half_floats_goes_and_comes_as_json(
    client: triton.InferenceServerClient, datatype: str, binary_in: bool, binary_out: bool
) -> None:
    answer = ask(client, datatype, binary_in, binary_out)
    expected = sample(datatype)
    if datatype == "BYTES" and not binary_out:
        expected = np.array([text.decode() for text in expected.flat], dtype=object).reshape(1, 3)
    assert np.array_equal(answer, expected)


@pytest.mark.parametrize("datatype", BINARY_ONLY)
def test_half_floats_have_no_json_form(raw: RawClient, datatype: str) -> None:
    path = f"/v2/models/identity_{datatype.lower()}/infer"
    as_json = raw.request("POST", path, infer_body(tensor([1.0], datatype=datatype)))
    assert (as_json.status, "binary" in as_json.json["error"]) == (400, True)
    header = infer_body(
        {"name": "INPUT0", "datatype": datatype, "shape": [1, 1], "parameters": {"binary_data_size": 2}}
    )
    answer = raw.request("POST", path, header + b"\0\0", Inference_Header_Content_Length=str(len(header)))
    assert (answer.status, "binary" in answer.json["error"]) == (400, True)


def test_one_request_may_mix_json_and_binary_inputs_and_outputs(client: triton.InferenceServerClient) -> None:
    first, second = triton.InferInput("INPUT0", [2, 4], "FP32"), triton.InferInput("INPUT1", [2, 4], "FP32")
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    first.set_data_from_numpy(array, binary_data=False)
    second.set_data_from_numpy(array, binary_data=True)
    outputs = [triton.InferRequestedOutput("OUTPUT1", binary_data=False), triton.InferRequestedOutput("OUTPUT0")]
    result = client.infer("add_sub", [first, second], outputs=outputs, request_id="mixed")
    assert np.array_equal(result.as_numpy("OUTPUT0"), array * 2)
    assert np.array_equal(result.as_numpy("OUTPUT1"), array * 0)
    assert result.get_response()["id"] == "mixed"
    assert "data" in result.get_output("OUTPUT1")
    assert result.get_output("OUTPUT0")["parameters"] == {"binary_data_size": 32}


def test_only_requested_outputs_come_back(raw: RawClient) -> None:
    body = infer_body(
        tensor([1, 2, 3, 4]),
        tensor([0, 0, 0, 0], name="INPUT1"),
        outputs=[{"name": "OUTPUT1"}],
        id="x",
        unknown={"a": []},
    )
    answer = raw.request("POST", "/v2/models/add_sub/versions/1/infer", body).json
    output = {"name": "OUTPUT1", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
    assert answer == {"id": "x", "model_name": "add_sub", "model_version": "1", "outputs": [output]}


def test_binary_data_output_holds_for_every_output_that_does_not_say_otherwise(raw: RawClient) -> None:
    inputs = tensor([1, 2, 3, 4]), tensor([0, 0, 0, 0], name="INPUT1")
    outputs = [{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": False}}]
    body = infer_body(*inputs, outputs=outputs, parameters={"binary_data_output": True})
    answer = raw.request("POST", "/v2/models/add_sub/infer", body)
    split = int(answer.headers["inference-header-content-length"])
    described = json.loads(answer.body[:split])["outputs"]
    assert [output.get("parameters") for output in described] == [{"binary_data_size": 16}, None]
    assert np.array_equal(np.frombuffer(answer.body[split:], np.float32), [1, 2, 3, 4])


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]], [1, 2, 3, 4], [1.0, 2, 3, 4.0]])
def test_json_data_may_be_flat_or_nested(raw: RawClient, data: Any) -> None:
    body = infer_body({"name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": data})
    assert raw.request("POST", "/v2/models/identity_fp32/infer", body).json["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT64", "UINT64", "INT8", "BOOL", "BYTES"])
def test_large_json_data_is_read_as_small_data_is(raw: RawClient, datatype: str) -> None:
    values = (SAMPLES.get(datatype, [1, -2, 3]) * 700)[:2000]
    if datatype == "BYTES":
        values = [text.decode() for text in values]
    for data in (values, [values[:1000], values[1000:]]):
        body = infer_body({"name": "INPUT0", "datatype": datatype, "shape": [2, 1000], "data": data})
        answer = raw.request("POST", f"/v2/models/identity_{datatype.lower()}/infer", body).json
        assert np.array_equal(
            np.array(answer["outputs"][0]["data"], dtype=DATATYPES[datatype].dtype),
            np.array(values, DATATYPES[datatype].dtype),
        )


@pytest.mark.parametrize("count", [2, 1000, 40_000])
def test_an_integer_beyond_64_bits_is_a_float_in_a_body_of_any_size(raw: RawClient, count: int) -> None:
    for values in ([10**30] * count, [1.5] * (count - 1) + [2**64]):
        answer = raw.request("POST", "/v2/models/identity_fp32/infer", infer_body(tensor(values)))
        assert answer.status == 200, answer.body[:200]
        assert np.array_equal(np.float32(answer.json["outputs"][0]["data"]), np.float32(values))


def test_numbers_that_are_not_finite_are_written_as_triton_writes_them(raw: RawClient) -> None:
    path = "/v2/models/identity_fp32/infer"
    for count in (1, 1000):
        values = [float("nan"), float("inf"), float("-inf"), 1.5] * count
        answer = raw.request("POST", path, infer_body(tensor(values)))
        assert b"NaN" in answer.body
        assert np.array_equal(answer.json["outputs"][0]["data"], values, equal_nan=True)


def test_empty_tensors_and_models_without_a_batch_dimension_are_served(client: triton.InferenceServerClient) -> None:
    for shape in ([0], [3]):
        source = triton.InferInput("INPUT0", shape, "FP32")
        source.set_data_from_numpy(np.ones(shape, np.float32))
        assert client.infer("plain", [source]).as_numpy("OUTPUT0").shape == tuple(shape)


def test_parameters_reach_the_request_and_wrong_ones_are_refused(client: triton.InferenceServerClient) -> None:
    source = triton.InferInput("INPUT0", [1, 3], "FP32")
    source.set_data_from_numpy(np.ones((1, 3), np.float32))
    client.infer("identity_fp32", [source], priority=0, timeout=1000000, parameters={"mine": 1, "yours": "a"})
    with pytest.raises(InferenceServerException, match="reserved"):
        client.infer("identity_fp32", [source], parameters={"triton_x": 1})


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_are_compressed_both_ways(client: triton.InferenceServerClient, algorithm: str) -> None:
    array = np.zeros((1, 50_000), np.float32)
    source = triton.InferInput("INPUT0", list(array.shape), "FP32")
    source.set_data_from_numpy(array)
    result = client.infer(
        "identity_fp32", [source], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("elements", [1, 400, 1000, 20_000])
@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, gzip;q=0.5", "gzip"),
        ("gzip;q=0.5, deflate", "deflate"),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0, br", None),
        ("gzip;q=x, deflate;q=9", None),
    ],
)
def test_an_answer_is_compressed_in_the_encoding_that_the_client_prefers(
    raw: RawClient, elements: int, accepted: str, encoding: str | None
) -> None:
    body = infer_body(tensor([0.5] * elements))
    answer = raw.request("POST", "/v2/models/identity_fp32/infer", body, Accept_Encoding=accepted)
    assert answer.headers.get("content-encoding") == encoding
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[encoding]
    assert json.loads(unpack(answer.body))["outputs"][0]["data"] == [0.5] * elements


def test_a_compressed_bomb_is_refused_without_being_unpacked(raw: RawClient) -> None:
    bomb = zlib.compress(b"\0" * (100 << 20), 9)
    answer = raw.request("POST", "/v2/models/identity_fp32/infer", bomb, Content_Encoding="deflate")
    assert (answer.status, "exceeds the maximum" in answer.json["error"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"nonsense", "gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-5], "gzip", 400),
        (b"{}", "br", 415),
        (zlib.compress(b"{}") + b"x", "deflate", 400),
    ],
)
def test_a_body_that_is_not_in_its_encoding_is_refused(raw: RawClient, body: bytes, encoding: str, status: int) -> None:
    answer = raw.request("POST", "/v2/models/identity_fp32/infer", body, Content_Encoding=encoding)
    assert answer.status == status
    assert answer.headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)
    assert raw.request("GET", "/v2").status == 200


@pytest.mark.parametrize(("model", "shape"), [("fixed", [1, 4]), ("plain", [4]), ("identity_fp32", [1, 4])])
def test_a_raw_binary_request_takes_its_shape_from_the_model(raw: RawClient, model: str, shape: list[int]) -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    answer = raw.request("POST", f"/v2/models/{model}/infer", data, Inference_Header_Content_Length="0")
    split = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:split])["outputs"][0]["shape"] == shape
    assert answer.body[split:] == data


@pytest.mark.parametrize(
    ("model", "size", "status"),
    [("add_sub", 16, 400), ("fixed", 12, 400), ("plain", 7, 400), ("identity_bytes", 4, 400)],
)
def test_a_raw_binary_request_that_leaves_the_shape_open_is_refused(
    raw: RawClient, model: str, size: int, status: int
) -> None:
    answer = raw.request("POST", f"/v2/models/{model}/infer", b"\0" * size, Inference_Header_Content_Length="0")
    assert answer.status == status
