"""GET /metrics beside the stock clients: Triton's families with their types, labels and units, and what counts into them."""

import queue
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import client_of
from tests.e2e.gated_model import GatedModel
from tests.support.model_factory import onnx_scale, python_model, tensors_text, write_config
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

ENSEMBLE = """name: "outer" platform: "ensemble" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step { model_name: "broken" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }"""
BROKEN = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("broken")
"""
PER_MODEL = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_pending_request_count": "gauge",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    "nv_inference_compute_input_duration_us": "counter",
    "nv_inference_compute_infer_duration_us": "counter",
    "nv_inference_compute_output_duration_us": "counter",
    "nv_inference_first_response_histogram_ms": "histogram",
    "nv_inference_request_summary_us": "summary",
    "nv_inference_queue_summary_us": "summary",
    "nv_inference_compute_input_summary_us": "summary",
    "nv_inference_compute_infer_summary_us": "summary",
    "nv_inference_compute_output_summary_us": "summary",
}
OF_CACHED_MODELS = {
    "nv_cache_num_hits_per_model": "counter",
    "nv_cache_num_misses_per_model": "counter",
    "nv_cache_hit_duration_per_model": "counter",
    "nv_cache_miss_duration_per_model": "counter",
    "nv_cache_hit_summary_per_model": "summary",
    "nv_cache_miss_summary_per_model": "summary",
}
OF_THE_MACHINE = {
    "nv_cpu_utilization": "gauge",
    "nv_cpu_memory_total_bytes": "gauge",
    "nv_cpu_memory_used_bytes": "gauge",
    "nv_pinned_memory_pool_total_bytes": "gauge",
    "nv_pinned_memory_pool_used_bytes": "gauge",
}


class Setting(NamedTuple):
    server: ServerProcess
    gated: GatedModel


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", 3.0, extra='metric_tags { key: "team-name" value: "blue" }')
    onnx_scale(repository, "cached", 3.0, extra="response_cache { enable: true }")
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    python_model(repository, "broken", BROKEN, f'name: "broken" backend: "python" max_batch_size: 8 {tensors}')
    write_config(repository / "outer", ENSEMBLE)
    (repository / "outer" / "1").mkdir()
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    gated = GatedModel(repository, tmp_path_factory.mktemp("gate"), extra=policy)
    flags = ("summary_latencies=true", "summary_quantiles=0.5:0.05,0.99:0.001", "histogram_latencies=true")
    with ServerProcess(
        repository, "--cache-config=local,size=1048576", *(f"--metrics-config={flag}" for flag in flags)
    ) as server:
        yield Setting(server, gated)


@pytest.fixture
def server(setting: Setting) -> ServerProcess:
    return setting.server


def page(server: ServerProcess) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def families(server: ServerProcess) -> dict[str, Any]:
    """By the name on the page: the parser moves "_total" from the name of a counter to its samples."""
    return {family.name: family for family in text_string_to_metric_families(page(server))}


def samples(server: ServerProcess, model: str) -> dict[str, float]:
    """Sample name, with its reason, quantile or bound -> value."""
    found = {}
    for family in families(server).values():
        for sample in family.samples:
            if sample.labels.get("model") == model:
                further = [sample.labels[name] for name in ("reason", "quantile", "le") if name in sample.labels]
                found["/".join([sample.name.removesuffix("_total"), *further])] = sample.value
    return found


def infer(client: TritonClient, model: str, rows: int = 1, value: float = 2.0) -> None:
    client.infer(model, {"INPUT0": np.full((rows, 1), value, np.float32)})


def test_every_family_of_tritons_documents_is_there_with_its_type(server: ServerProcess) -> None:
    found = families(server)
    expected = PER_MODEL | OF_CACHED_MODELS | OF_THE_MACHINE
    assert {name: found[name].type for name in expected if name in found} == expected
    labels = {"model": "scale", "version": "1", "_team_name": "blue"}
    for name in PER_MODEL:
        rows = [sample.labels for sample in found[name].samples if sample.labels["model"] == "scale"]
        assert rows, name
        assert all(row.items() >= labels.items() for row in rows)
    assert {sample.labels["model"] for name in OF_CACHED_MODELS for sample in found[name].samples} == {"cached"}
    assert all(sample.labels == {} for name in OF_THE_MACHINE for sample in found[name].samples)
    reasons = {sample.labels["reason"] for sample in found["nv_inference_request_failure"].samples}
    assert reasons == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
    loads = {sample.labels["model"]: sample.value for sample in found["nv_model_load_duration_secs"].samples}
    assert loads["scale"] > 0


def test_summaries_and_histograms_count_every_request(client: TritonClient, server: ServerProcess) -> None:
    before = samples(server, "scale")
    for rows in (1, 4):
        infer(client, "scale", rows)
    after = samples(server, "scale")
    grown = {name: value - before[name] for name, value in after.items() if name in before}
    for family in (name for name, kind in PER_MODEL.items() if kind == "summary"):
        assert grown[f"{family}_count"] == 2, family
        assert 0 <= after[f"{family}/0.5"] <= after[f"{family}/0.99"], family
        assert set(after) >= {f"{family}_sum", f"{family}/0.5", f"{family}/0.99"}
    assert grown["nv_inference_first_response_histogram_ms_count"] == 2
    assert grown["nv_inference_first_response_histogram_ms_bucket/+Inf"] == 2
    assert (grown["nv_inference_request_success"], grown["nv_inference_count"], grown["nv_inference_exec_count"]) == (
        2, 5, 2,
    )  # fmt: skip
    for phase in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        total = after[f"nv_inference_{phase}_duration_us"]
        assert after[f"nv_inference_{phase}_summary_us_sum"] == pytest.approx(total, abs=1), phase


def test_the_cache_of_a_model_counts(client: TritonClient, server: ServerProcess) -> None:
    before = samples(server, "cached")
    for _ in range(3):
        infer(client, "cached", value=7.0 + (client.protocol == "grpc"))
    after = samples(server, "cached")
    grown = {name: value - before[name] for name, value in after.items() if name in before}
    assert (grown["nv_cache_num_hits_per_model"], grown["nv_cache_num_misses_per_model"]) == (2, 1)
    assert (grown["nv_cache_hit_summary_per_model_count"], grown["nv_cache_miss_summary_per_model_count"]) == (2, 1)
    assert after["nv_cache_miss_duration_per_model"] > 0
    assert (grown["nv_inference_request_success"], grown["nv_inference_count"]) == (3, 1), "hits are not inferred"


def failures(server: ServerProcess, model: str) -> dict[str, float]:
    prefix = "nv_inference_request_failure/"
    return {name.removeprefix(prefix): v for name, v in samples(server, model).items() if name.startswith(prefix)}


def grown_failures(before: dict[str, float], server: ServerProcess, model: str) -> dict[str, float]:
    return {reason: grew for reason, value in failures(server, model).items() if (grew := value - before[reason])}


def test_failures_have_their_reason(client: TritonClient, server: ServerProcess) -> None:
    before = {name: failures(server, name) for name in ("broken", "outer")}
    with pytest.raises(InferenceServerException, match="broken"):
        infer(client, "broken")
    with pytest.raises(InferenceServerException):
        client.infer("broken", {"WRONG": np.ones((1, 1), np.float32)})
    assert grown_failures(before["broken"], server, "broken") == {"BACKEND": 1, "OTHER": 1}
    with pytest.raises(InferenceServerException, match="broken"):
        infer(client, "outer")
    assert grown_failures(before["outer"], server, "outer") == {"OTHER": 1}
    assert grown_failures(before["broken"], server, "broken") == {"BACKEND": 2, "OTHER": 1}


def test_what_waits_is_pending_until_it_runs_and_a_full_queue_rejects(setting: Setting) -> None:
    server, gated = setting
    gated.shut()
    before = failures(server, "gated")
    answers: queue.Queue[Any] = queue.Queue()
    with client_of(server, "grpc") as client:

        def send(name: str) -> Any:
            tensors = client.tensors({"INPUT0": np.ones((1, 1), np.float32)})
            return client.client.async_infer(
                "gated", tensors, lambda result, error: answers.put(error), request_id=name
            )

        send("runs")
        gated.wait_for("runs")
        waiting = [send("waits"), send("goes")]
        pending = "nv_inference_pending_request_count"
        wait_until(lambda: samples(server, "gated")[pending] == 2, what="two pending requests")
        send("too many")
        assert "maximum queue size" in str(answers.get(timeout=PATIENCE_S))
        assert grown_failures(before, server, "gated") == {"REJECTED": 1}
        waiting[1].cancel()
        wait_until(lambda: samples(server, "gated")[pending] == 1, what="one pending request")
        gated.open()
        outcomes = [answers.get(timeout=PATIENCE_S) for _ in range(3)]
        assert sum(error is None for error in outcomes) == 2
        assert samples(server, "gated")[pending] == 0
    assert grown_failures(before, server, "gated") == {"REJECTED": 1, "CANCELED": 1}


def test_metrics_of_the_machine_are_read_once_an_interval_and_can_be_left_out(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    with ServerProcess(repository, "--metrics-interval-ms=3600000") as server:
        first, second = (families(server)["nv_cpu_memory_used_bytes"].samples[0].value for _ in range(2))
        assert first == second > 0
    with ServerProcess(repository, "--allow-cpu-metrics=false", "--allow-gpu-metrics=false") as server:
        text = page(server)
    assert "nv_cpu_" not in text
    assert "nv_gpu_" not in text
    assert "nv_pinned_memory_pool_total_bytes" in text


def test_families_that_are_not_asked_for_are_left_out(tmp_path: Path) -> None:
    onnx_scale(tmp_path, "scale")
    with ServerProcess(tmp_path, "--metrics-config=histogram_latencies=false") as server:
        text = page(server)
    for part in ("_summary_", "_histogram_ms", "nv_cache_"):
        assert part not in text
    assert "nv_inference_queue_duration_us" in text
