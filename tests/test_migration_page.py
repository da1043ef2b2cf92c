"""docs/migration.md: its rollouts are ones that start, and its FastAPI example goes as the page tells."""

import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.rollouts.plan import plan_of, policy_checked, policy_of_plan
from repository.config import model_config
from repository.config.traffic import policy_of, set_traffic, traffic_of, traffic_problem
from repository.core.json_types import JsonObject
from serving.traffic.remotes.allow_list import RemoteAllowList
from tests.serving.traffic.remotes.services import Received, service
from tests.support.serving_process import ServerProcess, wait_until
from tests.test_compatibility_page import ROOT

PAGE = (ROOT / "docs" / "migration.md").read_text()
PYTHON = dict(re.findall(r"```python\n# (.*?)\n(.*?)```", PAGE, re.DOTALL))
ROLLOUTS = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def policy(rollout: dict[str, Any], weight: float = 0) -> JsonObject:
    """Return the policy of a rollout that the page starts."""
    plan = plan_of(rollout["kind"], rollout["plan"])
    return policy_of_plan("r", plan, rollout["candidate"], rollout.get("stable"), weight)


@pytest.mark.parametrize("rollout", ROLLOUTS, ids=lambda rollout: rollout["kind"])
def test_every_rollout_of_the_page_is_one_that_starts(rollout: dict[str, Any]) -> None:
    policy_checked(policy(rollout, weight=5))


def test_every_server_that_the_page_calls_is_in_its_list(tmp_path: Path) -> None:
    found = re.search(r"^echo '(.*)' > remotes.json$", PAGE, re.MULTILINE)
    assert found is not None
    (tmp_path / "remotes.json").write_text(found[1])
    listed = RemoteAllowList(tmp_path / "remotes.json")
    for rollout in ROLLOUTS:
        for url in policy_of(policy(rollout)).urls:
            listed.of(url)


def test_the_parameters_of_a_server_without_a_dashboard_are_policies() -> None:
    lines = re.findall(r"^parameters \{ .*$", PAGE, re.MULTILINE)
    found = [traffic_of(model_config.parse(f'name: "numbers"\n{line}')) for line in lines]
    assert [one and one.weight for one in found] == [0, 5]


def test_the_shadow_finds_the_clean_up_that_differs_and_agrees_with_the_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = {**ROLLOUTS[0]}
    models = repository(tmp_path)
    remotes = tmp_path / "remotes.json"
    application = fastapi_application(tmp_path, monkeypatch)
    with service(application["app"].answer) as old:
        shadow["stable"] = {**shadow["stable"], "url": f"{old.url}/predict"}
        remotes.write_text(json.dumps({old.url: {}}))
        configure(models, policy(shadow))
        with ServerProcess(
            models, "--model-control-mode=explicit", "--load-model=*", f"--traffic-remotes={remotes}"
        ) as server:
            assert ask(server) == "0"  # FastAPI has no versions
            found = compared(server, 20)
            assert found["disagreed"] > 0
            assert found["failed"] == found["mismatched"] == 0
            configure(models, policy({**shadow, "candidate": 2}) | {"rollout": "another"})
            assert server.post("/v2/repository/models/postcodes/load")[0] == 200
            found = compared(server, 20)
            assert found["disagreed"] == found["failed"] == 0
            configure(models, policy({**ROLLOUTS[1], "stable": shadow["stable"]}, weight=100) | {"rollout": "canary"})
            assert server.post("/v2/repository/models/postcodes/load")[0] == 200
            assert ask(server) == "2"
            source = PYTHON["app.py, for clients that stay as they are"]
            exec(source.replace("http://127.0.0.1:8000", server.http_url), application)
            scan = application["Scan"](bitmap=np.full((32, 32), 99.0).tolist())
            theirs, ours = application["predict"](scan), application["ask"](scan)
            application["slipway"].close()
            assert theirs["digit"] == ours["digit"]
            assert theirs["probabilities"] == pytest.approx(ours["probabilities"], abs=1e-6)


def repository(tmp_path: Path) -> Path:
    """Return a repository with the page's model, and the example model that it asks."""
    models = tmp_path / "models"
    shutil.copytree(ROOT / "examples" / "models" / "digits", models / "digits")
    first = PYTHON["model.py, version 1"]
    for number, source in ((1, first), (2, first + PYTHON["model.py, version 2: the same but for"])):
        folder = models / "postcodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(source)
    return models


def configure(models: Path, traffic: JsonObject) -> None:
    found = re.search(r"```\n(backend: .*?)```", PAGE, re.DOTALL)
    assert found is not None
    config = model_config.parse(f'name: "postcodes"\nversion_policy {{ all {{ }} }}\n{found[1]}')
    assert traffic_problem(traffic, config) == ""
    set_traffic(config, policy_of(traffic))
    (models / "postcodes" / "config.pbtxt").write_text(str(config))


def fastapi_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names of the page's app.py. FastAPI and pydantic are doubles here: the project does without them."""

    class FastAPI:
        def __init__(self) -> None:
            self.routes: dict[str, Any] = {}

        def post(self, path: str) -> Any:
            return lambda function: self.routes.setdefault(path, function)

        def answer(self, received: Received) -> Any:
            return self.routes[received.path](names["Scan"](**received.json))

    class BaseModel:
        def __init__(self, **fields: Any) -> None:
            vars(self).update(fields)

    for name, one in (("fastapi", FastAPI), ("pydantic", BaseModel)):
        module = types.ModuleType(name)
        setattr(module, one.__name__, one)
        monkeypatch.setitem(sys.modules, name, module)
    shutil.copy(ROOT / "examples" / "models" / "digits" / "2" / "model.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(PYTHON["app.py"], "app.py", "exec"), names)
    return names


def ask(server: ServerProcess) -> str:
    """Send a scan of noise; the version that answered."""
    bitmap = np.random.default_rng().integers(0, 256, (1, 32, 32))
    tensor = {"name": "bitmap", "datatype": "FP32", "shape": [1, 32, 32], "data": bitmap.tolist()}
    status, answer = server.post("/v2/models/postcodes/infer", {"inputs": [tensor]})
    assert status == 200, answer
    return str(answer["model_version"])


def compared(server: ServerProcess, count: int) -> dict[str, Any]:
    """Ask until the shadow has compared so many answers; its figures."""

    def figures() -> dict[str, Any]:
        report: dict[str, Any] = server.get("/v2/slipway/models/postcodes/traffic")[1]["shadow"]
        return report

    wait_until(lambda: ask(server) == "0" and figures()["compared"] >= count)
    return figures()
