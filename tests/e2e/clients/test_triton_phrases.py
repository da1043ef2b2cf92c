"""The phrases of refusals that Triton's own tests and operators look for; the rest of each sentence is ours.

Each phrase stands in Triton's qa/ folder as an assertion.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_factory import onnx_add_sub, onnx_identity, onnx_scale, python_model
from tests.support.serving_process import PATIENCE_S, ServerProcess

ONE = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
GENERATES = """name: "generates" backend: "python"
input { name: "PROMPT" data_type: TYPE_STRING dims: 1 }
input { name: "STREAM" data_type: TYPE_BOOL dims: 1 }
input { name: "ids" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "TEXT" data_type: TYPE_STRING dims: 1 }
"""
COLD = """name: "cold" backend: "python" model_warmup { name: "zeros" batch_size: 1
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""
FAILS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no luck")
"""
STATELESS = """name: "stateful" backend: "onnxruntime" max_batch_size: 4 sequence_batching {}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name in ("scale", "twice", "broken", "stateful"):
        onnx_scale(repository, name)
    onnx_scale(repository, "twice", version=2, extra="version_policy { all {} }")
    (repository / "twice" / "2" / "model.onnx").write_bytes(b"no model")
    (repository / "broken" / "config.pbtxt").write_text("nonsense")
    (repository / "stateful" / "config.pbtxt").write_text(STATELESS)
    onnx_add_sub(repository, "two")
    onnx_identity(repository, "texts", "BYTES", [2])
    onnx_identity(repository, "many", "FP32", [-1, -1])
    python_model(repository, "generates", FAILS, GENERATES)
    python_model(
        repository,
        "streams",
        FAILS,
        GENERATES.replace("generates", "streams") + "model_transaction_policy { decoupled: true }",
    )
    python_model(repository, "cold", FAILS, COLD)
    (repository / "empty").mkdir()
    loaded = ("scale", "two", "texts", "many", "generates", "streams", "stateful")
    flags = ["--model-control-mode=explicit", "--allow-client-shm=true", *(f"--load-model={name}" for name in loaded)]
    with ServerProcess(repository, *flags, "--http-restricted-api=logging:key=value") as server:
        Path("/dev/shm/slipway-phrases").write_bytes(bytes(64))
        yield server
        Path("/dev/shm/slipway-phrases").unlink()


def infer(model: str, *inputs: dict[str, Any], **more: Any) -> tuple[str, Any]:
    return f"/v2/models/{model}/infer", {"inputs": list(inputs), **more}


def region(name: str, size: int = 4, offset: int = 0) -> dict[str, Any]:
    place = {"shared_memory_region": name, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "parameters": place}


def register(name: str, key: str, size: int, offset: int = 0) -> tuple[str, Any]:
    asked = {"key": key, "byte_size": size, "offset": offset}
    return f"/v2/systemsharedmemory/region/{name}/register", asked


def load(name: str, **parameters: str) -> tuple[str, Any]:
    return f"/v2/repository/models/{name}/load", {"parameters": parameters}


TEXTS = (
    {"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    {"name": "STREAM", "datatype": "BOOL", "shape": [1], "data": [True]},
)
PROMPT = {"PROMPT": "a", "STREAM": False}
PHRASES = {
    "load of what is not there": (load("absent"), 404, "failed to load 'absent', failed to poll from model repository"),
    "load of what cannot be read": (
        load("broken"),
        400,
        "failed to load 'broken', failed to poll from model repository",
    ),
    "load without a version": (
        load("empty"),
        400,
        "at least one version must be available under the version policy of model",
    ),
    "load of a bad version": (load("twice"), 400, "load failed for model 'twice': version 2 is at UNAVAILABLE state: "),
    "load with a bad override": (load("scale", config="{"), 400, "Invalid config override"),
    "load with files alone": (load("scale", **{"file:1/m": ""}), 400, "failed to poll from model repository"),
    "load with a file elsewhere": (load("new", config="{}", **{"file:../m": ""}), 400, "failed to load"),
    "warm-up that fails": (load("cold"), 500, "failed to run warmup"),
    "unknown model": (infer("absent", ONE), 404, "Request for unknown model: 'absent' is not found"),
    "unknown version": (
        infer("scale/versions/9", ONE),
        404,
        "Request for unknown model: 'scale' version 9 is not found",
    ),
    "model that failed": (infer("twice", ONE), 503, "Request for unknown model: 'twice' has no available versions"),
    "version that failed": (infer("twice/versions/2", ONE), 503, "version 2 is not at ready state"),
    "trace of an unknown model": (("/v2/models/absent/trace/setting", {}), 404, "Request for unknown model : absent"),
    "restricted": (("/v2/logging", {}), 403, "This API is restricted"),
    "no inputs": (
        infer("two"),
        400,
        "expected 2 inputs but got 0 inputs for model 'two'. Got input(s) [], but missing required input(s) "
        "['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    "unknown input": (infer("scale", ONE, {**ONE, "name": "X"}), 400, "unexpected inference input 'X' for model"),
    "unknown output": (infer("scale", ONE, outputs=[{"name": "X"}]), 400, "unexpected inference output 'X' for model"),
    "shape": (
        infer("scale", {**ONE, "shape": [1, 1, 1]}),
        400,
        "unexpected shape for input 'INPUT0' for model 'scale'",
    ),
    "region that is not there": (register("a", "/absent", 4), 500, "Unable to open shared memory region: '/absent'"),
    "region without a key": (register("a", "", 4), 500, "Unable to open shared memory region: ''"),
    "region too long": (
        register("a", "/slipway-phrases", 65),
        400,
        "failed to register shared memory region 'a': invalid args",
    ),
    "region of nothing": (
        register("a", "/slipway-phrases", 0),
        400,
        "failed to register shared memory region 'a': invalid args",
    ),
    "unknown region": (infer("scale", region("absent")), 404, "Unable to find shared memory region: 'absent'"),
    "decoupled": (infer("streams", *TEXTS), 501, "doesn't support models with decoupled transaction policy"),
    "sequence without an id": (infer("stateful", ONE), 400, "must specify a non-zero or non-empty correlation ID"),
    "sequence without a start": (
        infer("stateful", ONE, parameters={"sequence_id": 7}),
        400,
        "must specify the START flag on the first request",
    ),
    "Python model that raises": (
        ("/v2/models/generates/generate", PROMPT),
        500,
        "Failed to process the request(s) for model",
    ),
    "generate without an input": (
        ("/v2/models/generates/generate", {"PROMPT": "a"}),
        400,
        "expected number of inputs between 2 and 3 but got 1",
    ),
    "generate with a number as text": (
        ("/v2/models/generates/generate", PROMPT | {"PROMPT": 1}),
        400,
        "attempt to access JSON non-string as string",
    ),
    "generate with a text as boolean": (
        ("/v2/models/generates/generate", PROMPT | {"STREAM": "false"}),
        400,
        "attempt to access JSON non-boolean as boolean",
    ),
    "generate with an object": (
        ("/v2/models/generates/generate", PROMPT | {"PARAMS": {"a": 1}}),
        400,
        "parameter 'PARAMS' has invalid type",
    ),
    "generate with bad parameters": (
        ("/v2/models/generates/generate", PROMPT | {"parameters": 1}),
        400,
        "Expected JSON object for keyword: 'parameters'",
    ),
    "generate with nested parameters": (
        ("/v2/models/generates/generate", PROMPT | {"parameters": {"nested": {"a": 1}}}),
        400,
        "Converting keyword: 'parameters': parameter 'nested' has invalid type.",
    ),
}


@pytest.mark.parametrize("case", PHRASES)
def test_a_refusal_holds_the_words_that_tritons_tests_look_for(server: ServerProcess, case: str) -> None:
    (path, body), code, phrase = PHRASES[case]
    status, answer = server.post(path, body)
    assert phrase in answer["error"]
    assert status == code, answer


def test_a_region_is_read_within_its_bounds_and_in_the_size_of_the_input(server: ServerProcess) -> None:
    assert server.post(*register("known", "/slipway-phrases", 64))[0] == 200
    for asked, phrase in (
        (register("known", "/slipway-phrases", 64), "shared memory region 'known' already in manager"),
        (
            infer("scale", region("known", 8)),
            "input byte size mismatch for input 'INPUT0' for model 'scale'. Expected 4, got 8",
        ),
        (infer("scale", region("known", 4, 64)), "Invalid offset for shared memory region"),
        (infer("scale", region("known", 65)), "Invalid offset + byte size for shared memory region"),
    ):
        status, answer = server.post(*asked)
        assert (status, phrase in answer["error"]) == (400, True), answer


@pytest.mark.parametrize(
    ("model", "phrase"),
    [
        ("two", "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in"),
        ("texts", "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"),
        (
            "many",
            "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized dim",
        ),
    ],
)
def test_a_raw_request_that_does_not_tell_its_shape_is_refused_in_tritons_words(
    server: ServerProcess, model: str, phrase: str
) -> None:
    import httpx

    url = f"{server.http_url}/v2/models/{model}/infer"
    answer = httpx.post(url, content=bytes(8), headers={"Inference-Header-Content-Length": "0"}, timeout=PATIENCE_S)
    assert (answer.status_code, phrase in json.loads(answer.text)["error"]) == (400, True), answer.text
