"""GET /metrics: Triton's names and labels, read with prometheus_client's parser; Slipway's histograms add up."""

import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.frontends.metrics import prometheus
from serving.frontends.metrics.hardware import Gpu, Hardware
from serving.telemetry.statistics import BatchStatistics, ModelStatistics
from tests.serving.frontends.raw_http import RawClient, infer_body, samples, tensor
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

LABELS = '{model="identity_int32",version="1"}'


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return Hardware()


def families(page: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name -> labels -> value. The "_total" that the parser adds to a counter's name is taken off again."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removesuffix("_total") if family.type == "counter" else sample.name
            found.setdefault(name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_requests_are_counted_as_triton_counts_them(http_server: ServerProcess, raw: RawClient) -> None:
    before = samples(http_server)
    for rows in (1, 3):
        raw.request("POST", "/v2/models/identity_int32/infer", infer_body(tensor([1] * rows, [rows, 1], "INT32")))
    raw.request("POST", "/v2/models/identity_int32/infer", infer_body(tensor([1] * 99, [99, 1], "INT32")))
    after = samples(http_server)
    grown = {name: value - before[name] for name, value in after.items() if LABELS in name}
    assert grown[f"nv_inference_request_success{LABELS}"] == 2
    assert grown[f"nv_inference_count{LABELS}"] == 4
    assert grown[f"nv_inference_exec_count{LABELS}"] == 2
    assert grown[f"nv_inference_request_duration_us{LABELS}"] > 0
    assert grown[f"slipway_request_duration_seconds_count{LABELS}"] == 2
    assert grown[f"slipway_batch_size_sum{LABELS}"] == 4
    assert after[f"nv_inference_pending_request_count{LABELS}"] == 0


def test_the_page_is_prometheus_text_with_tritons_families(http_server: ServerProcess) -> None:
    with urllib.request.urlopen(http_server.metrics_url, timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        found = families(answer.read().decode())
    reasons = {dict(labels)["reason"] for labels in found["nv_inference_request_failure"]}
    assert reasons == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
    for name in (
        "nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us", "nv_model_load_duration_secs",
    ):  # fmt: skip
        assert (("model", "add_sub"), ("version", "1")) in found[name]
    assert 0 <= found["nv_cpu_utilization"][()] <= 1
    assert 0 < found["nv_cpu_memory_used_bytes"][()] < found["nv_cpu_memory_total_bytes"][()]
    assert found["slipway_process_resident_bytes"][()] > 10 << 20


def test_labels_are_escaped(hardware: Hardware) -> None:
    name = 'a"b\\c\nd'
    found = families("".join(prometheus.render([ModelStatistics(name, 1)], hardware)))
    assert (("model", name), ("version", "1")) in found["nv_inference_count"]


def test_the_exported_buckets_are_the_fine_ones_merged(hardware: Hardware) -> None:
    model = ModelStatistics("m", 1)
    durations_us = [0, 1, 63, 64, 65, 100, 127, 128, 1_000, 50_000, 67_108_863, 67_108_864, 2_000_000_000]
    for us in durations_us:
        model.request_latency.add(us * 1000)
    model.batches = {1: BatchStatistics(5), 8: BatchStatistics(2), 9: BatchStatistics(1), 5000: BatchStatistics(1)}
    found = families("".join(prometheus.render([model], hardware)))
    for labels, count in found["slipway_request_duration_seconds_bucket"].items():
        bound_us = float(dict(labels)["le"]) * 1e6
        assert count == sum(us < bound_us - 1e-6 for us in durations_us), labels
    batches = {dict(labels)["le"]: count for labels, count in found["slipway_batch_size_bucket"].items()}
    assert (batches["1"], batches["8"], batches["16"], batches["+Inf"]) == (5, 7, 8, 9)


def test_gpus_are_shown_with_the_values_of_the_driver(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("GPU-1", 0.5, 100, 200, 70.5, None, 12.0)
    monkeypatch.setattr(hardware, "gpus", lambda: [gpu])
    found = families("".join(prometheus.render([], hardware)))
    labels = (("gpu_uuid", "GPU-1"),)
    assert found["nv_gpu_utilization"][labels] == 0.5
    assert found["nv_gpu_memory_total_bytes"][labels] == 200
    assert found["nv_energy_consumption"][labels] == 12
    assert "nv_gpu_power_limit" not in found


def test_child_processes_count_as_the_server(hardware: Hardware) -> None:
    before = hardware.process().rss_bytes
    with subprocess.Popen([sys.executable, "-c", "held = b'x' * (256 << 20); input()"], stdin=subprocess.PIPE) as child:
        wait_until(lambda: hardware.process().rss_bytes > before + (128 << 20), what="the child's memory")
        child.communicate(b"\n")


def test_cpu_seconds_do_not_fall_when_a_child_ends(hardware: Hardware) -> None:
    before = hardware.process().cpu_seconds
    spin = "import time\nwhile time.process_time() < 0.5: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as child:
        wait_until(lambda: hardware.process().cpu_seconds >= before + 0.5, what="the child's time")
        child.communicate(b"\n")
    assert hardware.process().cpu_seconds >= before + 0.5
    other = Hardware()  # has read nothing while the child ran
    assert other.process().cpu_seconds >= before + 0.5
