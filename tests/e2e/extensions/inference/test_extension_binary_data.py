"""The binary tensor data extension: every mix of JSON and binary over HTTP, raw bodies, raw and typed contents over gRPC."""

import itertools
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.http import InferenceServerClient

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.clients.tritonclient_suite import sample
from tests.e2e.extensions.clients import client_of
from tests.support.model_factory import ONNX_TYPES, onnx_add_sub, onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess

MIXES = list(itertools.product([True, False], repeat=2))
ARRAYS = [np.array([[1, 2, 3, 4]], np.float32), np.array([[4, 3, 2, 1]], np.float32)]
CONTENTS = (
    {
        "BOOL": "bool_contents",
        "INT32": "int_contents",
        "INT64": "int64_contents",
        "UINT32": "uint_contents",
        "UINT64": "uint64_contents",
        "FP32": "fp32_contents",
        "FP64": "fp64_contents",
        "BYTES": "bytes_contents",
    }
    | dict.fromkeys(("INT8", "INT16"), "int_contents")
    | dict.fromkeys(("UINT8", "UINT16"), "uint_contents")
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for datatype in ONNX_TYPES:
        onnx_identity(repository, f"identity_{datatype.lower()}", datatype)
    onnx_add_sub(repository)
    onnx_identity(repository, "one_string", "BYTES", [1])
    with ServerProcess(repository) as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TritonClient]:
    with client_of(server, "http") as client:
        yield client


@pytest.mark.parametrize("binary_inputs", MIXES)
@pytest.mark.parametrize("binary_outputs", [*MIXES, None])
def test_inputs_and_outputs_are_binary_or_json_each_by_itself(
    client: TritonClient, binary_inputs: tuple[bool, bool], binary_outputs: tuple[bool, bool] | None
) -> None:
    inputs, outputs = [], None
    for number, (array, binary) in enumerate(zip(ARRAYS, binary_inputs, strict=True)):
        inputs.append(client.library.InferInput(f"INPUT{number}", [1, 4], "FP32"))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    if binary_outputs is not None:
        outputs = [
            client.library.InferRequestedOutput(f"OUTPUT{number}", binary_data=binary)
            for number, binary in enumerate(binary_outputs)
        ]
    result = client.call("infer", "add_sub", inputs, outputs=outputs)
    assert result.as_numpy("OUTPUT0").tolist() == [[5, 5, 5, 5]]
    assert result.as_numpy("OUTPUT1").tolist() == [[-3, -1, 1, 3]]
    came = tuple("binary_data_size" in output.get("parameters", {}) for output in result.get_response()["outputs"])
    assert came == (binary_outputs or (True, True)), "without a word all outputs are binary for this client"


def raw(server: ServerProcess, model: str, body: bytes) -> httpx.Response:
    url = f"{server.http_url}/v2/models/{model}/infer"
    return httpx.post(url, content=body, headers={"Inference-Header-Content-Length": "0"}, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        ("identity_int32", np.arange(5, dtype=np.int32).tobytes(), [[0, 1, 2, 3, 4]]),
        ("identity_bool", b"\x01\x00", [[True, False]]),
        ("one_string", "schön".encode(), [["schön".encode()]]),
        ("one_string", b"", [[b""]]),
    ],
)
def test_a_body_of_nothing_but_data_is_one_request(
    server: ServerProcess, model: str, body: bytes, expected: Any
) -> None:
    answer = raw(server, model, body)
    length = int(answer.headers["Inference-Header-Content-Length"])
    result = InferenceServerClient.parse_response_body(answer.content, header_length=length)
    assert result.as_numpy("OUTPUT0").tolist() == expected


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        (
            "add_sub",
            bytes(16),
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub'",
        ),
        ("identity_int32", bytes(5), "can not be deduced because 5 bytes do not fill it"),
        ("identity_bytes", b"abc", "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"),
    ],
)
def test_a_body_of_nothing_but_data_must_tell_its_shape(
    server: ServerProcess, model: str, body: bytes, words: str
) -> None:
    answer = raw(server, model, body)
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents_are_taken_over_grpc_as_raw_ones_are(server: ServerProcess, datatype: str) -> None:
    array = sample(datatype)
    request = service_pb2.ModelInferRequest(model_name=f"identity_{datatype.lower()}")
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=array.shape)
    getattr(tensor.contents, CONTENTS[datatype]).extend(array.reshape(-1).tolist())
    with grpc.insecure_channel(server.grpc) as channel, client_of(server, "grpc") as client:
        typed = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        inputs = client.tensors({"INPUT0": array})
        assert (
            typed.raw_output_contents
            == client.call("infer", request.model_name, inputs).get_response().raw_output_contents
        )
