"""Prometheus accepts what deploy/prometheus holds, and its alerts fire when they should, and only then.

The files in `rules` are unit tests of promtool. They look at the firing alerts from minute to minute.
"""

import re
from pathlib import Path

import pytest
import yaml

from tests.e2e.monitoring.tools import DEPLOYED, RULES, checked, needs_alertmanager, needs_prometheus, rules
from tests.support.serving_process import ROOT

UNIT_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yml"))
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()
ALERTS = rules("alert")
OWN = """rule_files: [{rules}/*.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'nv_inference_request_success{{job="slipway",instance="a",model="fraud",version="1"}}'
        values: '0+600x30'
      - series: 'nv_inference_request_success{{job="slipway",instance="a",model="other",version="1"}}'
        values: '0+600x30'
      - series: 'slipway_request_duration_seconds_count{{job="slipway",instance="a",model="fraud",version="1"}}'
        values: '0+600x30'
      - series: 'slipway_request_duration_seconds_bucket{{job="slipway",instance="a",model="fraud",version="1",le="0.032768"}}'
        values: '0+540x30'
      - series: 'slipway_request_duration_seconds_bucket{{job="slipway",instance="a",model="fraud",version="1",le="0.131072"}}'
        values: '0+600x30'
    promql_expr_test:
      - expr: slipway:availability_objective
        eval_time: 30m
        exp_samples:
          - {{labels: 'slipway:availability_objective{{model="fraud"}}', value: 0.9999}}
          - {{labels: 'slipway:availability_objective{{model="other"}}', value: 0.999}}
      - expr: slipway:latency_bound
        eval_time: 30m
        exp_samples:
          - {{labels: 'slipway:latency_bound{{model="fraud", le="0.032768"}}', value: 1}}
          - {{labels: 'slipway:latency_bound{{model="other", le="0.131072"}}', value: 1}}
      - expr: round(slipway:latency_burn:5m, 0.01)
        eval_time: 30m
        exp_samples:
          - {{labels: '{{job="slipway", model="fraud"}}', value: 10}}
"""


@needs_prometheus
def test_prometheus_accepts_rules_and_configuration() -> None:
    checked("promtool", "check", "rules", "--lint-fatal", *RULES)
    checked("promtool", "check", "config", DEPLOYED / "prometheus.yml")


@needs_prometheus
def test_prometheus_accepts_the_configuration_for_a_cluster(tmp_path: Path) -> None:
    """Debian's Prometheus has no discovery of Kubernetes' pods, so this part is replaced."""
    content = yaml.safe_load((DEPLOYED / "kubernetes.yml").read_text())
    (job,) = content["scrape_configs"]
    del job["kubernetes_sd_configs"]
    job["static_configs"] = [{"targets": ["127.0.0.1:8002"]}]
    content["rule_files"] = [f"{DEPLOYED}/rules/*.yml"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(content))
    checked("promtool", "check", "config", tmp_path / "prometheus.yml")


@needs_alertmanager
def test_alertmanager_accepts_its_example() -> None:
    checked("amtool", "check-config", DEPLOYED / "alertmanager.yml")


@needs_alertmanager
@pytest.mark.parametrize(("severity", "receiver"), [("page", "on-call"), ("ticket", "tickets")])
def test_alertmanager_sends_each_severity_to_its_receiver(severity: str, receiver: str) -> None:
    file = f"--config.file={DEPLOYED / 'alertmanager.yml'}"
    assert checked("amtool", "config", "routes", "test", file, f"severity={severity}").strip() == receiver
    assert severity in {rule["labels"]["severity"] for rule in ALERTS}


@needs_prometheus
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_recover(path: Path) -> None:
    checked("promtool", "test", "rules", path)


def test_every_alert_fires_in_a_unit_test() -> None:
    text = "".join(path.read_text() for path in UNIT_TESTS)
    assert [rule["alert"] for rule in ALERTS if f'alertname="{rule["alert"]}"' not in text] == []


@needs_prometheus
def test_a_model_can_have_objectives_of_its_own(tmp_path: Path) -> None:
    """The lines are those of the comments in objectives.yml."""
    text = (DEPLOYED / "rules" / "objectives.yml").read_text()
    objective, _, bound = re.findall(r"^ *# +(label_replace\(.* or.*)$", text, re.MULTILINE)
    text = text.replace("0.999 * group", f"{objective} 0.999 * group")
    text = text.replace("label_replace(group by", f"{bound} label_replace(group by")
    for path in RULES:
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "objectives.yml").write_text(text)
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "own.yml").write_text(OWN.format(rules=tmp_path))
    checked("promtool", "test", "rules", tmp_path / "unit" / "own.yml")


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels'].get('window', '')}")
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "action", "runbook"}
    assert all(told.values())
    assert told["runbook"] == f"docs/troubleshooting.md#{str(rule['alert']).lower()}"
    assert f"\n### {rule['alert']}\n" in TROUBLESHOOTING
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_page_names_no_alert_that_does_not_exist() -> None:
    assert set(re.findall(r"^### (Slipway\w+)$", TROUBLESHOOTING, re.MULTILINE)) == {rule["alert"] for rule in ALERTS}


def test_failures_are_counted_with_the_interval_of_their_rates() -> None:
    """An alert sums a rate that is recorded once in each interval."""
    groups = yaml.safe_load((DEPLOYED / "rules" / "recording.yml").read_text())["groups"]
    (interval,) = [group["interval"] for group in groups if group["name"] == "slipway_requests"]
    assert interval == "30s"
    burns = [rule["expr"] for rule in ALERTS if rule["alert"].endswith("Burn")]
    assert len(burns) == 6
    assert all(re.search(r"sum_over_time\(.*\) \* 30 >= 10", expression) for expression in burns)
