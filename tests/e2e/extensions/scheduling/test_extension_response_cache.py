"""The response cache: what the stock clients see of answers that no model computed."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, refused
from tests.support.model_factory import onnx_add_sub, onnx_identity, onnx_scale
from tests.support.serving_process import ServerProcess

WORDS = {
    "http": ([b"ab", b"c"], [b"a", b"bc"], [b"ab", b"c"]),
    "grpc": ([b"", b"a"], [b"a", b""], [b"a", b""]),
}
CACHED = "response_cache { enable: true }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", extra=CACHED)
    onnx_scale(repository, "uncached")
    onnx_add_sub(repository, extra=CACHED)
    onnx_identity(repository, "words", "BYTES", extra=CACHED)
    flags = ("--cache-config=local,size=1048576", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(repository, *flags) as server:
        yield server
        assert "Traceback" not in server.log


def counted(client: TritonClient, model: str) -> dict[str, int]:
    (row,) = client.described("get_inference_statistics", model)["model_stats"]
    names = {name: row["inference_stats"].get(name, {}) for name in ("success", "cache_hit", "cache_miss")}
    return {name: int(value.get("count", 0)) for name, value in names.items()} | {
        "executions": int(row.get("execution_count", 0))
    }


def counts_of(client: TritonClient, model: str, *requests: dict[str, Any], **options: Any) -> dict[str, int]:
    before = counted(client, model)
    for inputs in requests:
        assert client.infer(model, inputs, **options).outputs
    return {name: value - before[name] for name, value in counted(client, model).items()}


def number(client: TritonClient, value: float) -> dict[str, Any]:
    """The two clients ask the same server, each for numbers of its own."""
    return {"INPUT0": np.full((1, 1), value + 100 * PROTOCOLS.index(client.protocol), np.float32)}


def test_an_equal_request_is_answered_without_the_model(client: TritonClient) -> None:
    requests = [number(client, value) for value in (1, 1, 2, 1)]
    found = counts_of(client, "scale", *requests)
    assert found == {"success": 4, "cache_hit": 2, "cache_miss": 2, "executions": 2}
    assert client.infer("scale", requests[2]).outputs["OUTPUT0"] == 2 * requests[2]["INPUT0"]


def test_strings_are_compared_whole(client: TritonClient) -> None:
    requests = [{"INPUT0": np.array([row], np.object_)} for row in WORDS[client.protocol]]
    assert counts_of(client, "words", *requests)["cache_hit"] == 1
    assert client.infer("words", requests[1]).outputs["OUTPUT0"].tolist() == requests[1]["INPUT0"].tolist()


def test_the_outputs_asked_for_are_part_of_the_request_and_its_id_is_not(client: TritonClient) -> None:
    value = number(client, 1)["INPUT0"].item()
    inputs = {name: np.full((1, 4), value, np.float32) for name in ("INPUT0", "INPUT1")}
    assert counts_of(client, "add_sub", inputs, inputs, request_id="a") == {
        "success": 2, "cache_hit": 1, "cache_miss": 1, "executions": 1
    }  # fmt: skip
    answer = client.infer("add_sub", inputs, request_id="b")
    assert (answer.id, list(answer.outputs)) == ("b", ["OUTPUT0", "OUTPUT1"])
    assert list(client.infer("add_sub", inputs, ["OUTPUT1"]).outputs) == ["OUTPUT1"]


def test_a_model_that_does_not_ask_for_it_runs_each_time(client: TritonClient) -> None:
    found = counts_of(client, "uncached", number(client, 1), number(client, 1))
    assert found == {"success": 2, "cache_hit": 0, "cache_miss": 0, "executions": 2}


def test_a_reloaded_model_forgets_its_answers(client: TritonClient) -> None:
    inputs = number(client, 50)
    assert counts_of(client, "scale", inputs, inputs)["cache_hit"] == 1
    config = {"backend": "onnxruntime", "max_batch_size": 4, "response_cache": {"enable": True}}
    client.call("load_model", "scale", config=json.dumps(config))
    assert counts_of(client, "scale", inputs, inputs)["cache_hit"] == 1
    client.call("unload_model", "scale")  # which ends the override
    client.call("load_model", "scale")


def test_a_decoupled_model_cannot_be_cached(client: TritonClient) -> None:
    config = {
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "response_cache": {"enable": True},
        "model_transaction_policy": {"decoupled": True},
    }
    message = refused(client, "INVALID_ARG", client.call, "load_model", "uncached", config=json.dumps(config))
    assert "response_cache" in message
