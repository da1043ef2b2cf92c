"""Of two real servers one gets a model later, and takes long to load it: until it has, the model is loading."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary
from dashboard.catalog.services import model_load
from dashboard.configuration.drift import model_adopt
from dashboard.models import ModelState, Server
from dashboard.watch import watcher
from tests.dashboard.processes import FixedServer, fixed_server
from tests.dashboard.watch.watching import watching
from tests.support import model_factory

pytestmark = [pytest.mark.django_db, pytest.mark.long]

GATE = "SLOW_LOAD_GATE"  # the environment variable of the slow server: its models load once this file exists
SLOW = f"""
    import os, pathlib, time

    class TritonPythonModel:
        def initialize(self, args):
            gate = os.environ.get("{GATE}")
            while gate and not pathlib.Path(gate).exists():
                time.sleep(0.02)

        def execute(self, requests):
            return []
"""
TENSOR = "data_type: TYPE_FP32 dims: [ 1 ]"
CONFIG = (
    f'name: "slow" backend: "python" input [ {{ name: "INPUT0" {TENSOR} }} ] output [ {{ name: "OUTPUT0" {TENSOR} }} ]'
)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[FixedServer]]:
    """Two servers, of which the second has a copy of the repository, and loads slowly."""
    with ExitStack() as running:
        found = [running.enter_context(fixed_server(tmp_path / name)) for name in ("models", "copy")]
        for server, environment in zip(found, ({}, {GATE: str(tmp_path / "gate")}), strict=True):
            server.start(environment=environment)
            running.callback(server.kill)
        yield found


def test_a_model_is_ready_when_the_slow_server_serves_it_too(
    started: list[FixedServer], actor: Actor, root: APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SERVERS_S", 0.2)
    model_factory.python_model(tmp_path / "models", "slow", SLOW, CONFIG)
    key = {"control_key": settings.SERVER_CONTROL_KEY}
    assert root.patch("/api/v1/environments/production", key, format="json").status_code == 200
    for number, server in enumerate(started):
        Server.objects.create(name=f"p-{number}", **server.addresses())
    model = model_adopt(name="slow", actor=actor)
    seen = set()

    def load() -> None:
        model_load(model=model, actor=actor)

    def state() -> dict[str, Any]:
        found: dict[str, Any] = root.get("/api/v1/models/slow").json()
        seen.add((found["state"], found["serving_servers"]))
        return found

    def copy() -> None:
        shutil.copytree(tmp_path / "models" / "slow", tmp_path / "copied")
        (tmp_path / "copied").rename(tmp_path / "copy" / "slow")

    def on_second(state: str) -> bool:
        return ModelState.objects.filter(server__name="p-1", model_name="slow", state=state).exists()

    watching(
        (load, lambda: (now := state())["serving_servers"] == 1 and now["servers"] == 2),
        (copy, lambda: state()["state"] == "loading" and on_second("LOADING")),
    )
    summary = model_summary(model)
    assert (summary.state, summary.spread.in_words) == ("loading", "on 1 of 2 servers")
    watching((lambda: (tmp_path / "gate").touch(), lambda: state()["state"] == "ready"))
    assert on_second("READY")
    assert seen >= {("loading", 1), ("ready", 2)}
    assert {word for word, serving in seen if serving < 2} == {"loading"}
