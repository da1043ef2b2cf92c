"""TorchServe's metrics API: its families, their filter, its modes, and metrics.yaml."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.core.errors import ServingError
from serving.torchserve.telemetry.metric_families import DEFAULTS, Families, Family, read_families
from serving.torchserve.telemetry.metrics_page import LEGACY
from tests.serving.frontends.raw_http import RawClient
from tests.serving.torchserve.apis.apis import Apis, apis
from tests.support.serving_process import wait_until


def page(apis: Apis, query: str = "") -> str:
    with RawClient(apis.metrics) as client:
        answer = client.request("GET", f"/metrics{query}")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.body.decode()


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, model or level and version) -> value"""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            shown = "/".join(value for name, value in labels.items() if name.lower() != "hostname")
            assert {name.lower() for name in labels} >= {"hostname"}
            found[sample.name.removesuffix("_total"), shown] = sample.value
    return found


def test_predictions_and_answers_are_counted_by_the_version_that_was_named(torchserve: Apis) -> None:
    before = samples(page(torchserve))
    with RawClient(torchserve.http) as client:
        for path in ("/predictions/acts", "/predictions/acts/1.0-beta", "/predictions/acts", "/predictions/nobody"):
            client.request("POST", path, b"raw")
    after = samples(page(torchserve))

    def grown(name: str, labels: str) -> float:
        return after[name, labels] - before.get((name, labels), 0)

    assert grown("ts_inference_requests", "acts/default") == 2
    assert grown("ts_inference_requests", "acts/1.0-beta") == 1
    assert grown("ts_inference_latency_microseconds", "acts/default") > 0
    assert grown("ts_queue_latency_microseconds", "acts/default") > 0
    assert grown("Requests2XX", "Host") == 4  # with the page itself
    assert grown("Requests4XX", "Host") == 1
    assert after["WorkerLoadTime", "W-acts_1.0-beta/Host"] > 0
    assert after["PredictionTime", "acts/Model"] >= 0
    assert 0 < after["MemoryUtilization", "Host"] < 100
    assert not [name for name, _ in after if name == "ts_inference_requests_total" and "nobody" in name]


def test_the_page_has_every_family_and_names_filter_it(torchserve: Apis) -> None:
    names = {line.split()[2] for line in page(torchserve).splitlines() if line.startswith("# TYPE")}
    assert names >= {family.name for part in DEFAULTS for family in part}
    filtered = page(torchserve, "?name[]=QueueTime&name%5B%5D=CPUUtilization")
    assert {line.split()[2] for line in filtered.splitlines() if line.startswith("# ")} == {
        "QueueTime",
        "CPUUtilization",
    }
    with RawClient(torchserve.metrics) as client:
        assert client.request("GET", "/nothing").json["type"] == "ResourceNotFoundException"


METRICS_YAML = """
dimensions:
  - &host "where"
ts_metrics:
  counter:
    - name: Requests2XX
      unit: Answers
      dimensions: ["kind", *host]
model_metrics:
  gauge:
    - name: OfAHandler
      unit: ms
      dimensions: ["ModelName"]
"""


def test_a_metrics_yaml_sets_the_families(tmp_path: Path) -> None:
    config = tmp_path / "metrics.yaml"
    config.write_text(METRICS_YAML)
    with apis(tmp_path, metrics_config=config) as running:
        page(running)
        text = page(running)
    assert 'Requests2XX{kind="Host",where="' in text
    assert "metric with unit: Answers" in text
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# ")} == {"Requests2XX", "OfAHandler"}


def test_in_log_mode_metrics_are_lines_of_a_file_and_in_legacy_mode_three_families_a_page(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with apis(models, metrics_mode="log", metrics_location=tmp_path / "log") as running:
        assert page(running) == ""
        with RawClient(running.http) as client:
            client.request("GET", "/nothing")
        file = tmp_path / "log" / "ts_metrics.log"
        wait_until(lambda: file.exists() and "MemoryUsed" in file.read_text(), what="what is measured at start")
    with apis(models, metrics_mode="legacy", metrics_location=tmp_path / "legacy") as running:
        assert {line.split()[2] for line in page(running).splitlines()} == LEGACY
    lines = file.read_text().splitlines()
    assert any(
        re.search(r" - Requests2XX\.Count:1\.0\|#Level:Host\|#hostname:.+,timestamp:\d+$", line) for line in lines
    )
    assert sum("Requests4XX.Count:1.0|" in line for line in lines) == 1
    assert sum("MemoryUsed.Megabytes:" in line for line in lines) == 1
    assert not re.search("ts_inference", (tmp_path / "legacy" / "ts_metrics.log").read_text())
    with apis(models, disable_system_metrics=True) as running:
        assert "CPUUtilization{" not in page(running)


@pytest.mark.parametrize(
    "content",
    [
        "- a list",
        "ts_metrics: [1]",
        "ts_metrics: {counter: 1}",
        "ts_metrics: {summary: []}",
        "ts_metrics: {gauge: [{}]}",
        "{",
        "a: *b",
    ],
)
def test_a_metrics_yaml_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(content)
    with pytest.raises(ServingError, match=r"metrics_config: cannot use 'metrics\.yaml'"):
        read_families(path)


def test_torchserves_own_form_of_a_metrics_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(METRICS_YAML)
    assert read_families(path) == Families(
        (Family("Requests2XX", "counter", "Answers", ("kind", "where")),),
        (Family("OfAHandler", "gauge", "ms", ("ModelName",)),),
    )
    with pytest.raises(ServingError, match="No such file"):
        read_families(tmp_path / "none.yaml")
