"""One installation drives several real servers that share the managed repository, each as its environment wants."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db.models import F
from rest_framework.test import APIClient

from dashboard.catalog.selectors import model_summary
from dashboard.fleet.discovery import GONE, servers_found
from dashboard.fleet.selectors import environment_get
from dashboard.models import AuditEntry, Model, ModelState, ModelSync, Server, ServerEnvironment, ServerState
from dashboard.servers.holdings import said_of
from dashboard.servers.selectors import server_get
from dashboard.shared.choices import DesiredState
from dashboard.watch import discovery, watcher
from tests.dashboard.processes import FixedServer, fixed_server
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = [pytest.mark.django_db, pytest.mark.long]

KEY = "key-of-staging"
GUARD = f"--http-restricted-api=model-repository:slipway-control-key={KEY}"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., FixedServer]]:
    """fleet("models", flags): a started server with a repository of that name."""
    with ExitStack() as running:

        def start(folder: str, *flags: str) -> FixedServer:
            server = running.enter_context(fixed_server(tmp_path / folder))
            server.start(*flags)
            return server

        yield start


@pytest.fixture
def root(person: Callable[..., Any]) -> APIClient:
    client = APIClient()
    client.force_authenticate(person(is_superuser=True, name="root"))
    return client


def want(name: str, state: str = DesiredState.LOADED) -> Model:
    return Model.objects.create(name=name, desired_state=state, generation=1)


def ready(server: str) -> set[tuple[str, int]]:
    rows = ModelState.objects.filter(server__name=server, state="READY")
    return set(rows.values_list("model_name", "version"))


def watching(*phases: tuple[Callable[[], object], Callable[[], bool]]) -> None:
    """Watch all servers of the database; in each phase do something, then wait for its condition."""

    async def scenario() -> None:
        running = asyncio.create_task(watcher.watch_servers())
        try:
            for act, condition in phases:
                await sync_to_async(act)()
                async with asyncio.timeout(PATIENCE_S):
                    while not await sync_to_async(condition)():
                        if running.done():
                            running.result()
                        await asyncio.sleep(0.05)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async_to_sync(scenario)()


def nothing() -> None:
    pass


def test_a_server_that_hangs_delays_no_other_one(
    fleet: Callable[..., FixedServer], root: APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SERVERS_S", 0.2)
    for name in ("first", "second"):
        (tmp_path / "models").mkdir(exist_ok=True)
        model_factory.onnx_identity(tmp_path / "models", name)
    want("first")
    made = root.post("/api/v1/environments", {"name": "eu", "everything": True, "control_key": KEY}, format="json")
    assert made.status_code == 201, made.data
    started = [fleet("models", GUARD) for _ in range(3)]
    for number, server in enumerate(started):
        addresses = server.addresses()
        body = {"name": f"eu-{number}", "address": addresses["http_url"], "grpc": addresses["grpc_url"]}
        body["metrics"] = addresses["metrics_url"]
        added = root.post("/api/v1/environments/eu/servers", body, format="json")
        assert added.status_code == 201, added.data
    hangs = started[0].process
    assert hangs is not None
    names = ("eu-1", "eu-2")

    def stop() -> None:
        hangs.send_signal(signal.SIGSTOP)
        want("second")

    try:
        watching(
            (nothing, lambda: all(ready(f"eu-{number}") == {("first", 1)} for number in range(3))),
            (stop, lambda: all(ready(name) == {("first", 1), ("second", 1)} for name in names)),
        )
        assert ready("eu-0") != ready("eu-1")
    finally:
        hangs.send_signal(signal.SIGCONT)
    watching((nothing, lambda: ready("eu-0") == ready("eu-1")))
    rows = root.get("/api/v1/environments/eu/servers").data["results"]
    assert [(row["wanted"], row["served"]) for row in rows] == [(2, 2)] * 3
    assert rows[0]["held"] == "Its repository holds 2 models, all of them ours."
