"""Of two real servers one takes long to load a model: until it has, the model is loading."""

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
from dashboard.models import Model, ModelState, Server
from dashboard.watch import watcher
from tests.dashboard.processes import FixedServer, fixed_server
from tests.dashboard.watch.watching import nothing, watching
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
    """Two servers of one repository, of which the second loads slowly."""
    with ExitStack() as running:
        found = [running.enter_context(fixed_server(tmp_path / "models")) for _ in range(2)]
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

    def first_serves() -> bool:
        state()
        return ModelState.objects.filter(server__name="p-0", model_name="slow", state="READY").exists()

    watching(
        (load, first_serves),
        (nothing, lambda: (now := state())["serving_servers"] == 1 and now["servers"] == 2),
    )
    assert {one for one, _ in seen} == {"loading"}
    summary = model_summary(Model.objects.get())
    assert (summary.state, summary.spread.in_words) == ("loading", "on 1 of 2 servers")
    watching((lambda: (tmp_path / "gate").touch(), lambda: state()["state"] == "ready"))
    assert seen >= {("loading", 1), ("ready", 2)}
    assert {word for word, serving in seen if serving < 2} == {"loading"}
