"""--metrics-config: which latencies /metrics shows."""

import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.cli.command_line import parse
from serving.core.model_identifier import ModelIdentifier
from serving.frontends.metrics import prometheus
from serving.frontends.metrics.hardware import Hardware
from serving.frontends.metrics.summaries import Summaries
from serving.models.repository_index import VersionHealth
from serving.telemetry.statistics import ModelStatistics
from tests.e2e.monitoring.tools import RULES
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess


def summary_values(summaries: Summaries, model: ModelStatistics) -> dict[str, float]:
    page = "".join(summaries.render([('model="m",version="1"', model)]))
    (family,) = [f for f in text_string_to_metric_families(page) if f.name == "nv_inference_request_summary_us"]
    return {sample.labels.get("quantile", sample.name.rpartition("_")[2]): sample.value for sample in family.samples}


def test_quantiles_are_those_of_the_last_minute() -> None:
    clock = iter([0.0, 30.0, 65.0, 130.0, 200.0])
    summaries = Summaries([0.5, 0.99], lambda: next(clock))
    model = ModelStatistics("m", 1)
    for microseconds in range(1, 101):
        model.request_latency.add(microseconds * 1000)
    first = summary_values(summaries, model)
    assert first["0.5"] == pytest.approx(50, rel=0.06)
    assert first["0.99"] == pytest.approx(99, rel=0.06)
    assert (first["count"], first["sum"]) == (100, 5050)
    summary_values(summaries, model)
    for _ in range(10):
        model.request_latency.add(9_000_000)
    assert summary_values(summaries, model)["0.5"] == pytest.approx(9000, rel=0.06)
    later = summary_values(summaries, model)
    assert later["count"] == 110
    quiet = summary_values(summaries, model)
    assert quiet["0.5"] != quiet["0.5"], "nothing happened in the last minute: NaN"


def test_a_model_that_is_loaded_again_has_none_of_its_former_requests_in_its_quantiles() -> None:
    clock = iter([0.0, 65.0, 70.0])
    summaries = Summaries([0.5], lambda: next(clock))
    before, after = ModelStatistics("m", 1), ModelStatistics("m", 1)
    for _ in range(10):
        before.request_latency.add(1_000_000)
        after.request_latency.add(1_000_000)
    summary_values(summaries, before)
    assert summary_values(summaries, after)["0.5"] == pytest.approx(1000, rel=0.06)


def test_the_flag_chooses_the_metrics(tmp_path: Path) -> None:
    onnx_scale(tmp_path)
    flags = ("counter_latencies=false", "summary_latencies=true", "summary_quantiles=0.1:0.0.1,0.25:0.05,0.75:0.01x")
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
    with ServerProcess(tmp_path, *(f"--metrics-config={flag}" for flag in flags)) as server:
        assert server.post("/v2/models/scale/infer", body)[0] == 200
        page = httpx.get(server.metrics_url, timeout=PATIENCE_S).text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert "nv_inference_request_success" in page
    assert not [name for name in families if name.endswith("_duration_us")]
    samples = families["nv_inference_queue_summary_us"].samples
    assert {sample.labels["quantile"] for sample in samples if "quantile" in sample.labels} == {"0.1", "0.25", "0.75"}
    assert {sample.value for sample in samples if sample.name.endswith("_count")} == {1}


def test_the_lean_level_has_all_that_the_rules_read_and_is_small() -> None:
    model, hardware, identifier = ModelStatistics("scale", 1), Hardware(), ModelIdentifier("scale")
    model.request_latency.add(50_000_000)
    health = prometheus.ServerHealth(
        True, 1.0, [VersionHealth(identifier, "1", True, False)], {"models": ""}, 0, {}, {}
    )
    full, lean = (
        "".join(
            prometheus.render([model], hardware, health=health, lean=lean, buckets=prometheus.LatencyBuckets(*which))
        )
        for lean, which in ((False, (10,)), (True, (1, True)))
    )
    exposed, kept = ({line.split("{")[0].split(" ")[0] for line in page.splitlines()} for page in (full, lean))
    read = set(re.findall(r"\w+", "".join(path.read_text() for path in RULES))) & exposed
    assert len(read) > 10
    assert read <= kept
    assert 'le="0.131072"' in lean, "the bound of the objectives"
    of_model = [sum(len(line) for line in page.splitlines() if 'model="scale"' in line) for page in (full, lean)]
    assert of_model[1] * 8 < of_model[0]


@pytest.mark.parametrize(
    "value",
    [
        "nothing=1",
        "summary_quantiles=2:0.1",
        "summary_quantiles=x",
        "summary_quantiles=0.5:x",
        "counter_latencies=maybe",
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([f"--model-repository={tmp_path}", f"--metrics-config={value}"])
    assert "expected" in capsys.readouterr().err
