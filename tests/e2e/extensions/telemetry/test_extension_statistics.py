"""The statistics extension with the stock clients: every field of extension_statistics.md, and what counts into it."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import client_of
from tests.support.model_factory import onnx_scale, python_model, write_config
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

STEP = """step { model_name: "scale" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""
TWICE = f"""name: "twice" platform: "ensemble" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
ensemble_scheduling {{ {STEP % ("INPUT0", "MIDDLE")} {STEP % ("MIDDLE", "OUT")} }}"""
# COUNT says how many responses a request gets; then comes an error (FAIL is 1), or the end alone.
STREAM = """
    import time

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                count, fail = (tensor.as_numpy()[0] for tensor in request.inputs())
                sender = request.get_response_sender()
                for number in range(count):
                    out = pb_utils.Tensor("OUT", np.array([number], np.int32))
                    sender.send(pb_utils.InferenceResponse([out]))
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                if fail:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("enough")), final)
                else:
                    sender.send(flags=final)
"""
STREAM_CONFIG = """name: "stream" backend: "python" max_batch_size: 0
input [{ name: "COUNT" data_type: TYPE_INT32 dims: 1 }, { name: "FAIL" data_type: TYPE_INT32 dims: 1 }]
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }"""
PHASES = ("compute_input", "compute_infer", "compute_output")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", 3.0)
    onnx_scale(repository, "cached", 3.0, extra="response_cache { enable: true }")
    write_config(repository / "twice", TWICE)
    (repository / "twice" / "1").mkdir()
    python_model(repository, "stream", STREAM, STREAM_CONFIG)
    with ServerProcess(repository, "--cache-config=local,size=1048576") as server:
        yield server


def numbers(found: Any) -> Any:
    """gRPC's JSON has numbers as text and leaves zeros out."""
    if isinstance(found, dict):
        return {name: value if name in ("name", "version", "type") else numbers(value) for name, value in found.items()}
    if isinstance(found, list):
        return [numbers(one) for one in found]
    return int(found)


def statistics(client: TritonClient, model: str) -> dict[str, Any]:
    [row] = client.described("get_inference_statistics", model)["model_stats"]
    found: dict[str, Any] = numbers(row)
    return found


def count(row: dict[str, Any], *names: str) -> int:
    for name in names:
        row = row.get(name, {})
    return int(row.get("count", 0))


def ask(client: TritonClient, model: str, value: float, rows: int = 1) -> None:
    client.infer(model, {"INPUT0": np.full((rows, 1), value, np.float32)})


def test_each_successful_request_counts_once_in_every_duration(client: TritonClient) -> None:
    before = statistics(client, "scale")
    for rows in (1, 1, 5):
        ask(client, "scale", 2, rows)
    with pytest.raises(InferenceServerException):
        client.infer("scale", {"WRONG": np.ones((1, 1), np.float32)})
    after = statistics(client, "scale")
    for name in ("success", "queue", *PHASES):
        assert count(after, "inference_stats", name) - count(before, "inference_stats", name) == 3, name
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"].get("success", {}).get("ns", 0)
    assert count(after, "inference_stats", "fail") - count(before, "inference_stats", "fail") == 1
    assert after["inference_count"] - before.get("inference_count", 0) == 7
    assert after["execution_count"] - before.get("execution_count", 0) == 3
    assert after["last_inference"] > 1_700_000_000_000
    assert (after["name"], after["version"]) == ("scale", "1")
    assert not after.get("response_stats"), "of decoupled models alone"
    sizes = {row["batch_size"]: row for row in after["batch_stats"]}
    assert {1, 5} <= set(sizes)
    assert {count(sizes[1], phase) for phase in PHASES} == {count(sizes[1], "compute_infer")} != {0}
    [memory] = after["memory_usage"]
    assert (memory["type"], memory.get("id", 0)) == ("CPU", 0)
    assert memory["byte_size"] > 0


def test_the_cache_counts_hits_and_misses(client: TritonClient) -> None:
    value = float(len(client.protocol))  # each protocol asks for what the other has not
    before = statistics(client, "cached")["inference_stats"]
    for _ in range(3):
        ask(client, "cached", value + 100 * (client.protocol == "grpc"))
    after = statistics(client, "cached")["inference_stats"]
    grown = {name: grew for name in after if (grew := count(after, name) - count(before, name))}
    assert grown == {"success": 3, "queue": 3, "cache_hit": 2, "cache_miss": 1} | dict.fromkeys(PHASES, 1)
    assert after["cache_hit"]["ns"] > 0 < after["cache_miss"]["ns"]


def test_an_ensemble_has_the_durations_of_its_steps(client: TritonClient) -> None:
    before, step_before = (statistics(client, name)["inference_stats"] for name in ("twice", "scale"))
    ask(client, "twice", 2, 4)
    after, step_after = (statistics(client, name)["inference_stats"] for name in ("twice", "scale"))
    for phase in PHASES:
        assert count(after, phase) - count(before, phase) == 1
        took, steps_took = (
            later.get(phase, {}).get("ns", 0) - earlier.get(phase, {}).get("ns", 0)
            for later, earlier in ((after, before), (step_after, step_before))
        )
        assert took == steps_took, phase
    assert count(after, "queue") == count(after, "success")
    assert [row["batch_size"] for row in statistics(client, "twice")["batch_stats"]] == [4]


def stream(server: ServerProcess, responses: int, fail: int) -> list[Any]:
    """All that comes, with the error last where one does."""
    answers: queue.Queue[Any] = queue.Queue()
    found = []
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error or result.get_response()))
        inputs = [triton.InferInput(name, [1], "INT32") for name in ("COUNT", "FAIL")]
        for tensor, value in zip(inputs, (responses, fail), strict=True):
            tensor.set_data_from_numpy(np.array([value], np.int32))
        client.async_stream_infer("stream", inputs, enable_empty_final_response=True)
        while True:
            found.append(answers.get(timeout=PATIENCE_S))
            if isinstance(found[-1], Exception) or found[-1].parameters["triton_final_response"].bool_param:
                client.stop_stream()
                return found


def test_responses_of_a_decoupled_model_count_by_their_place(client: TritonClient, server: ServerProcess) -> None:
    before = statistics(client, "stream")
    queued = count(before, "inference_stats", "queue")
    assert len(stream(server, 3, 0)) == 4
    assert len(stream(server, 1, 1)) == 2
    after = wait_until(  # the execution may end after its last response
        lambda: count(now := statistics(client, "stream"), "inference_stats", "queue") == queued + 2 and now,
        what="the executions' statistics",
    )
    places = after["response_stats"]
    earlier = before.get("response_stats", {})
    grown = {
        place: {name: grew for name in row if (grew := count(row, name) - count(earlier.get(place, {}), name))}
        for place, row in places.items()
    }
    assert grown == {
        "0": {"compute_infer": 2, "compute_output": 2, "success": 2},
        "1": {"compute_infer": 2, "compute_output": 1, "success": 1, "fail": 1},
        "2": {"compute_infer": 1, "compute_output": 1, "success": 1},
        "3": {"compute_infer": 1, "empty_response": 1},
    }
    first = places["0"]
    assert first["success"]["ns"] == first["compute_infer"]["ns"] + first["compute_output"]["ns"] > 0
    assert count(after, "inference_stats", "success") - count(before, "inference_stats", "success") == 1
    assert count(after, "inference_stats", "fail") - count(before, "inference_stats", "fail") == 1


def test_every_field_is_there_over_http(server: ServerProcess) -> None:
    stream(server, 1, 0)
    with client_of(server, "http") as client:
        rows = client.call("get_inference_statistics")["model_stats"]
        [row] = client.call("get_inference_statistics", "stream", "1")["model_stats"]
    assert {row["name"] for row in rows} == {"scale", "cached", "twice", "stream"}
    assert set(row) == {
        "name", "version", "last_inference", "inference_count", "execution_count", "inference_stats", "response_stats",
        "batch_stats", "memory_usage",
    }  # fmt: skip
    assert set(row["inference_stats"]) == {"success", "fail", "queue", *PHASES, "cache_hit", "cache_miss"}
    assert set(row["response_stats"]["0"]) == {
        "compute_infer", "compute_output", "success", "fail", "empty_response", "cancel",
    }  # fmt: skip
    assert row["response_stats"]["0"]["cancel"] == {"count": 0, "ns": 0}


def test_a_cancelled_stream_counts_where_its_next_response_would_have_been(tmp_path: Path) -> None:
    wait = "while not sender.is_cancelled(): time.sleep(0.01)\n                if fail:"
    waits = STREAM.replace("if fail:", wait)
    python_model(tmp_path, "stream", waits, STREAM_CONFIG)
    with ServerProcess(tmp_path) as server, client_of(server, "grpc") as client:
        answers: queue.Queue[Any] = queue.Queue()
        client.client.start_stream(lambda result, error: answers.put(result))
        inputs = [triton.InferInput(name, [1], "INT32") for name in ("COUNT", "FAIL")]
        for tensor, value in zip(inputs, (1, 0), strict=True):
            tensor.set_data_from_numpy(np.array([value], np.int32))
        client.client.async_stream_infer("stream", inputs)
        answers.get(timeout=PATIENCE_S)
        client.client.stop_stream(cancel_requests=True)

        def counted() -> tuple[int, int, int]:
            row = statistics(client, "stream")
            of_responses = [count(row, "response_stats", *one) for one in (("0", "success"), ("1", "cancel"))]
            return (*of_responses, count(row, "inference_stats", "fail"))  # type: ignore[return-value]

        wait_until(lambda: counted() == (1, 1, 1), what="the cancelled request's statistics")
