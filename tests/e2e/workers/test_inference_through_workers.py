"""What goes over the link between a worker and the core comes out as it went in: tensors, names, errors, parameters."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import Tensor, TritonClient
from tests.e2e.clients.tritonclient_suite import sample
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.e2e.workers.worker_processes import Answers, infer_request, one_each, worker_pids
from tests.support.model_factory import (
    ONNX_TYPES,
    onnx_add_sub,
    onnx_identity,
    onnx_scale,
    python_decoupled,
    python_model,
    tensors_text,
)
from tests.support.serving_process import PATIENCE_S, ServerProcess

MB = 1 << 20
# Answers with the parameters of its request.
ECHO = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT0", one.inputs()[0].as_numpy())],
                    parameters=json.loads(one.parameters()) | {"correlation": str(one.correlation_id())},
                )
                for one in requests
            ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for datatype in ONNX_TYPES:
        onnx_identity(repository, f"identity_{datatype.lower()}", datatype)
    onnx_add_sub(repository)
    onnx_scale(repository)
    python_decoupled(repository)
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    python_model(repository, "echo", ECHO, f'name: "echo" backend: "python" max_batch_size: 8 {tensors}')
    with ServerProcess(repository, "--frontend-workers=2", "--http-header-forward-pattern=x-.*") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(server, request.param) as client:
        yield client


@pytest.mark.parametrize("datatype", [*ONNX_TYPES])
def test_every_datatype_comes_back(client: TritonClient, datatype: str) -> None:
    array = sample(datatype)
    found = client.infer(f"identity_{datatype.lower()}", {"INPUT0": Tensor(array, datatype)}).outputs["OUTPUT0"]
    assert (found == array).all()


@pytest.mark.parametrize("columns", [0, 1, 2047, 2049, 5 * MB])
def test_tensors_of_any_size_come_back(client: TritonClient, columns: int) -> None:
    array = np.arange(columns, dtype=np.float32)[None]
    assert np.array_equal(client.infer("identity_fp32", {"INPUT0": array}).outputs["OUTPUT0"], array)


def test_large_texts_come_back(client: TritonClient) -> None:
    array = np.array([[b"x" * size for size in (0, 1, 40_000, 300_000)]], np.object_)
    assert np.array_equal(client.infer("identity_bytes", {"INPUT0": array}).outputs["OUTPUT0"], array)


def test_many_large_requests_at_once_are_not_mixed_up(server: ServerProcess) -> None:
    def ask(number: int) -> bool:
        array = np.full((1, MB // 4 + number), number, np.float32)
        with client_of(server, PROTOCOLS[number % 2]) as client:
            return all(
                np.array_equal(client.infer("identity_fp32", {"INPUT0": array}).outputs["OUTPUT0"], array)
                for _ in range(5)
            )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(16)))


def test_pipelined_requests_of_their_own_kinds_and_ids_are_answered_in_order(server: ServerProcess) -> None:
    """More shapes than the link remembers, and no id twice."""
    (client, *others) = one_each(server).values()
    answers = Answers(client)
    for first in range(1, 1301, 20):
        client.sendall(b"".join(infer_request("identity_fp32", f"id-{n}", n, (1, n)) for n in range(first, first + 20)))
        for number in range(first, first + 20):
            status, body = answers.next()
            assert status == 200, body
            found = json.loads(body)
            assert (found["id"], found["outputs"][0]["data"]) == (f"id-{number}", [number] * number)
    for one in (client, *others):
        one.close()


def test_parameters_and_sequences_reach_the_model_and_come_back(client: TritonClient) -> None:
    tensors = client.tensors({"INPUT0": np.ones((1, 1), np.float32)})
    asked = {"text": "a", "number": 3, "flag": True}
    found = client.call("infer", "echo", tensors, parameters=asked, sequence_id=7).get_response()
    if client.protocol == "http":
        parameters = found["parameters"]
    else:
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in found.parameters.items()
        }
    assert parameters == asked | {"correlation": "7"}


def test_forwarded_headers_reach_the_model(server: ServerProcess) -> None:
    body = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    url = f"{server.http_url}/v2/models/echo/infer"
    found = httpx.post(url, json=body, headers={"X-Tenant": "harbour", "Other": "no"}, timeout=PATIENCE_S).json()
    assert {name.lower(): value for name, value in found["parameters"].items()} == {
        "x-tenant": "harbour",
        "correlation": "0",
    }


def test_errors_keep_their_codes(client: TritonClient) -> None:
    value = np.ones((1, 1), np.float32)
    refused(client, "NOT_FOUND", client.infer, "absent", {"INPUT0": value})
    refused(client, "INVALID_ARG", client.infer, "scale", {"INPUT0": np.ones((1, 3), np.float32)})
    refused(client, "INVALID_ARG", client.infer, "scale", {"WRONG": value})


def test_a_decoupled_model_is_refused_in_the_usual_words(client: TritonClient) -> None:
    with pytest.raises(InferenceServerException, match="doesn't support models with decoupled transaction policy"):
        client.infer("decoupled", {"INPUT0": np.array([3], np.float32)})


def test_classes_are_those_of_the_core(server: ServerProcess) -> None:
    tensor = tritonclient.http.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[0, 3, 2, 1]], np.float32))
    wanted = tritonclient.http.InferRequestedOutput("OUTPUT0", class_count=2)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        found = client.infer("identity_fp32", [tensor], outputs=[wanted]).as_numpy("OUTPUT0")
    assert [text.decode().split(":")[1] for text in found.ravel()] == ["1", "2"]


def test_a_request_without_a_header_takes_the_shape_of_its_model(server: ServerProcess) -> None:
    url = f"{server.http_url}/v2/models/identity_fp32/infer"
    data = np.arange(6, dtype=np.float32).tobytes()
    found = httpx.post(url, content=data, headers={"Inference-Header-Content-Length": "0"}, timeout=PATIENCE_S)
    assert found.status_code == 200
    assert found.content.endswith(data)


def test_both_workers_take_requests(server: ServerProcess) -> None:
    clients = one_each(server)
    assert set(clients) == worker_pids(server)
    assert len(clients) == 2
    for client in clients.values():
        with client:
            client.sendall(infer_request("scale"))
            assert Answers(client).next()[0] == 200
