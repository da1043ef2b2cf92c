"""Every query of the rules and dashboards is asked of a real Prometheus, which scrapes a real server under traffic, and a web
process of the dashboard."""

import http.client
import itertools
import json
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.dashboard.web_process import finished, listening, migrate
from tests.e2e.monitoring.tools import DASHBOARDS, PrometheusProcess, needs_prometheus, rules
from tests.support.model_factory import onnx_scale, python_model, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

pytestmark = needs_prometheus

ROLLOUT = """
version_policy { all {} }
response_cache { enable: true }
parameters { key: "slipway.release" value { string_value: "7" } }
parameters { key: "slipway.aliases" value { string_value: '{"default": 1}' } }
parameters { key: "slipway.traffic" value { string_value: '{"rollout": "r-1", "candidate": 2, "weight": 50}' } }
"""
BROKEN = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("broken")
"""
# The first word of a panel's title -> the metric that is there where the panel has data: of a GPU, of PostgreSQL.
NEEDS = {"GPU": "nv_gpu_utilization", "Sessions": "slipway_web_database_sessions"}
# What a worker and a watcher would have left in the database.
PREPARE = """
import time
from django.contrib.auth import get_user_model
from django.utils import timezone
from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import token_create
from dashboard.models import Job, MetricSample, ServerState
from dashboard.servers.services import server_ensure_local
from dashboard.watch.lease import Lease
administrator_ensure()
user, server = get_user_model().objects.get(), server_ensure_local()
Job.objects.create(kind="inspect")
Job.objects.create(kind="inspect", state="failed", finished_at=timezone.now())
ServerState.objects.filter(server=server).update(checked_at=timezone.now())
MetricSample.objects.create(server=server, resolution=1, at=int(time.time()), data=b"")
Lease().take()
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read"])[1])
"""
# The model of the dashboard about one model: it has a rollout, a release and a cache.
MODEL = "busy"


class Setting(NamedTuple):
    server: ServerProcess
    prometheus: PrometheusProcess


def body(value: float) -> str:
    return json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}]})


class Traffic:
    """A client that asks each model in turn until it is stopped. The cache has the answer of every second request."""

    def __init__(self, address: str, models: tuple[str, ...]) -> None:
        self._address, self._models = address, models
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _ask_on(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_S)
        for number in itertools.count():
            for model in self._models:
                connection.request("POST", f"/v2/models/{model}/infer", body(number // 2))
                connection.getresponse().read()
            if self._stop.wait(0.02):
                break
        connection.close()


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, MODEL, extra=ROLLOUT)
    candidate = repository / MODEL / "2"
    candidate.mkdir()
    (candidate / "model.onnx").write_bytes((repository / MODEL / "1" / "model.onnx").read_bytes())
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    python_model(repository, "broken", BROKEN, f'name: "broken" backend: "python" max_batch_size: 8 {tensors}')
    damaged = onnx_scale(repository, "damaged")
    (damaged / "1" / "model.onnx").write_bytes(b"damaged")
    folder = tmp_path_factory.mktemp("prometheus")
    data = tmp_path_factory.mktemp("web") / "data"
    migrate(data)
    token = finished(data, "manage.py", "shell", "--no-imports", "-c", PREPARE)
    flags = ("--exit-on-error=false", "--cache-config=local,size=1048576", f"--request-log={folder / 'requests.log'}")
    with (
        ServerProcess(repository, *flags, wait="live") as server,
        listening(data, "-m", "daphne") as (dashboard, _),
        PrometheusProcess(folder / "prometheus", server.metrics, urlsplit(dashboard).netloc, token) as prometheus,
    ):
        wait_until(lambda: server.get(f"/v2/models/{MODEL}/ready")[0] == 200, what="the model's load")
        wait_until(lambda: server.get("/v2/models/broken/ready")[0] == 200, what="the other model's load")
        with Traffic(server.http, (MODEL, "broken", "damaged")):
            yield Setting(server, prometheus)


def queries() -> list[Any]:
    """Each query of each panel, with the values of the dashboard's variables."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", "1m").replace("$model", MODEL)
                expression = expression.replace("$instance", ".*")
                name = f"{path.stem}: {panel['title']} {target['refId']}"
                needs = next((metric for start, metric in NEEDS.items() if panel["title"].startswith(start)), "")
                found.append(pytest.param(expression, needs, id=name))
    return found


@pytest.mark.parametrize(("expression", "needs"), queries())
def test_a_panel_has_data(setting: Setting, expression: str, needs: str) -> None:
    if needs and not setting.prometheus.ask(needs):
        assert setting.prometheus.ask(expression) == []
        return

    def numbers() -> list[float]:
        """The values, without the NaN of a model that has answered nothing."""
        values = [float(row["value"][1]) for row in setting.prometheus.ask(expression)]
        return [value for value in values if not math.isnan(value)]

    wait_until(numbers, what=f"data of {expression}")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_the_variables_of_a_dashboard_have_values(setting: Setting, dashboard: Path) -> None:
    for variable in json.loads(dashboard.read_text())["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        values = setting.prometheus.get(f"label/{asked[2]}/values", **{"match[]": asked[1]})
        assert values, variable["name"]


@pytest.mark.parametrize("name", sorted({rule["record"] for rule in rules("record")}))
def test_a_recording_rule_has_data(setting: Setting, name: str) -> None:
    wait_until(lambda: setting.prometheus.ask(name), what=f"data of {name}")


def test_every_rule_is_evaluated_without_an_error(setting: Setting) -> None:
    def states() -> dict[str, str]:
        groups = setting.prometheus.get("rules")["groups"]
        return {rule["name"]: rule["health"] + rule.get("lastError", "") for group in groups for rule in group["rules"]}

    wait_until(lambda: "unknown" not in states().values(), what="the evaluation of every rule")
    assert set(states().values()) == {"ok"}, states()
    assert set(states()) == {
        rule.get("alert") or rule.get("record") for kind in ("alert", "record") for rule in rules(kind)
    }


def test_alerts_begin_for_what_is_wrong_with_this_server_and_name_it(setting: Setting) -> None:
    def begun() -> dict[tuple[str, str], dict[str, str]]:
        alerts = setting.prometheus.get("alerts")["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("model", "")): one["annotations"] for one in alerts}

    expected = {
        ("SlipwayModelLoadFailed", "damaged"),
        ("SlipwayServerNotReady", ""),
        ("SlipwayAvailabilityBurn", "broken"),
        ("SlipwayAvailabilityBurn", "damaged"),
        ("SlipwayRequestsUnserved", "damaged"),
    }
    wait_until(lambda: expected <= set(begun()), what="the alerts")
    assert ("SlipwayAvailabilityBurn", MODEL) not in begun()
    told = begun()["SlipwayModelLoadFailed", "damaged"]
    assert told["summary"] == f"Model damaged version 1 did not load on {setting.server.metrics}"
    assert [text for annotations in begun().values() for text in annotations.values() if "<error" in text] == []
