"""POST /v2/slipway/models/{model}/sample: the next requests of a model with their answers, which load as golden requests."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.support.model_factory import onnx_identity, onnx_scale, onnx_sequence_controls, python_model
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

KEY = {"x-control": "harbour"}
BOTH = """version_policy { all {} }
    parameters { key: "slipway.aliases" value { string_value: "{\\"old\\": 1}" } }"""


SAME = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            tensors = [request.inputs()[0].as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""
SAME_CONFIG = """name: "text" backend: "python" max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_STRING dims: -1 } output { name: "OUTPUT0" data_type: TYPE_STRING dims: -1 }"""


@pytest.fixture(scope="module", params=[(), ("--frontend-workers=2",)], ids=["one process", "workers"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    onnx_scale(models, "scale", 2.0, version=1)
    onnx_scale(models, "scale", 3.0, version=2, extra=BOTH)
    python_model(models, "text", SAME, SAME_CONFIG)
    onnx_identity(models, "half", "FP16", [-1])
    onnx_sequence_controls(models)
    flags = (
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-restricted-api=model-repository:x-control=harbour",
    )
    with ServerProcess(models, *flags, *request.param) as server:
        yield server
        assert "Traceback" not in server.log


def ask(server: ServerProcess, name: str, /, **body: Any) -> httpx.Response:
    url = f"{server.http_url}/v2/slipway/models/{name}/sample"
    return httpx.post(url, json=body, headers=KEY, timeout=PATIENCE_S)


def sampled(server: ServerProcess, model: str, infer: Callable[[], object], **body: Any) -> dict[str, Any]:
    """The answer to a sampling, while requests come all the time."""
    with ThreadPoolExecutor(1) as executor:
        asked: Future[httpx.Response] = executor.submit(ask, server, model, **body)
        while not asked.done():
            infer()
        answer = asked.result()
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_samples_are_what_clients_asked_and_were_answered(server: ServerProcess, client: TritonClient) -> None:
    found = sampled(
        server, "scale", lambda: client.infer("scale", {"INPUT0": np.full((2, 1), 1.5, np.float32)}), count=3
    )
    assert (found["model"], len(found["samples"]), found["skipped"]) == (
        "scale",
        3,
        {"too_large": 0, "failed": 0, "unfit": 0},
    )
    one = found["samples"][0]
    tensor = {"datatype": "FP32", "shape": [2, 1]}
    assert one["version"] == 2
    assert one["request"]["inputs"] == [{"name": "INPUT0", **tensor, "data": [1.5, 1.5]}]
    assert one["answer"]["outputs"] == [{"name": "OUTPUT0", **tensor, "data": [4.5, 4.5]}]
    checks = [{"name": "a", "request": one["request"], "expected": one["answer"]}]
    body = {"parameters": {"slipway.golden": json.dumps(checks)}}
    assert (
        httpx.post(
            f"{server.http_url}/v2/repository/models/scale/load", json=body, headers=KEY, timeout=PATIENCE_S
        ).status_code
        == 200
    )


def test_samples_may_be_of_one_version_alone(server: ServerProcess, client: TritonClient) -> None:
    one = {"INPUT0": np.ones((1, 1), np.float32)}

    def infer() -> None:
        client.infer("scale", one)
        client.infer("scale", one, model_version="1")

    found = sampled(server, "scale", infer, count=2, version="old")
    assert [sample["version"] for sample in found["samples"]] == [1, 1]


def test_texts_bytes_and_half_precision_are_told(server: ServerProcess, client: TritonClient) -> None:
    text = {"INPUT0": np.array([["caf\u00e9"]], object)}
    found = sampled(server, "text", lambda: client.infer("text", text), count=1)
    assert found["samples"][0]["request"]["inputs"][0]["data"] == ["caf\u00e9"]
    odd = {"INPUT0": np.array([[b"\xff"]], object)}
    found = sampled(server, "text", lambda: client.infer("text", odd), count=1)
    assert found["samples"][0]["answer"]["outputs"][0]["base64"] == "AQAAAP8="
    half = {"INPUT0": np.array([[0.5, np.nan]], np.float16)}
    found = sampled(server, "half", lambda: client.infer("half", half), count=1)
    assert found["samples"][0]["request"]["inputs"][0]["data"] == [0.5, "NaN"]


def passed_over(server: ServerProcess, model: str, why: str, infer: Callable[[], object]) -> bool:
    """Whether nothing was sampled in half a second, and a request was passed over for this reason."""
    found = sampled(server, model, infer, count=1, seconds=0.5)
    assert found["samples"] == []
    return bool(found["skipped"][why] > 0)


def test_what_cannot_be_asked_again_is_passed_over_and_counted(server: ServerProcess, client: TritonClient) -> None:
    one = {"INPUT0": np.ones((1, 1), np.float32)}

    def in_a_sequence() -> None:
        client.infer("counted", one, sequence_id=9, sequence_start=True, sequence_end=True)

    wait_until(lambda: passed_over(server, "counted", "unfit", in_a_sequence), what="a request in a sequence")
    wide = {"INPUT0": np.zeros((1, 1 << 20), np.float16)}
    wait_until(
        lambda: passed_over(server, "half", "too_large", lambda: client.infer("half", wide)), what="a large request"
    )

    def wrong() -> None:
        with pytest.raises(Exception, match="unexpected inference input 'NONE'"):
            client.infer("scale", {"NONE": one["INPUT0"]})

    wait_until(lambda: passed_over(server, "scale", "failed", wrong), what="a request that fails")


def test_without_traffic_the_time_ends_it(server: ServerProcess) -> None:
    found = ask(server, "scale", count=1, seconds=0.1).json()
    assert found["samples"] == []
    assert found["seconds"] >= 0.09  # a timer may ring a tick of its clock early


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"count": 0}, "'count' to be a whole number from 1 to 100"),
        ({"count": True}, "'count'"),
        ({"count": 101}, "'count'"),
        ({"seconds": 0}, "'seconds' to be a number over 0 and at most 600"),
        ({"seconds": "1"}, "'seconds'"),
        ({"version": 1}, "'version' to be a text"),
        ({"model": "scale"}, "not 'model'"),
    ],
)
def test_what_is_wrong_with_a_sampling_is_told(server: ServerProcess, body: dict[str, Any], said: str) -> None:
    answer = ask(server, "scale", **body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_sampling_takes_the_key_and_a_model_that_serves(server: ServerProcess) -> None:
    assert (
        httpx.post(f"{server.http_url}/v2/slipway/models/scale/sample", json={}, timeout=PATIENCE_S).status_code == 403
    )
    assert ask(server, "nobody").status_code == 404
    assert ask(server, "scale", version="7").status_code == 404
