"""Asleep, unloaded, failed: what the server tells of a version is a field of its index and feed, which the dashboard reads.

Both sides run: a real server, and what the dashboard makes of its answers.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboard.catalog.selectors import _judge
from dashboard.catalog.spread import Spread
from dashboard.metrics.feed import FeedReader
from dashboard.models import ModelState, Server
from dashboard.servers.client import AsyncServerClient, Unreachable
from dashboard.servers.server_state import Report, model_states_record, server_lost
from dashboard.servers.services import server_ensure_local
from dashboard.shared.exceptions import DashboardError
from dashboard.watch.reconciler import state_for_plan, version_statuses
from tests.dashboard.processes import fixed_server, server_client
from tests.dashboard.supervisor.test_up import command_line
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, descendants, wait_until

ON_DEMAND = json.dumps(json.dumps({"mode": "on_demand", "idle_seconds": 600}))
ASLEEP = f'parameters {{ key: "slipway.residency" value {{ string_value: {ON_DEMAND} }} }}'
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}).encode()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conditions") / "models"


@pytest.fixture(scope="module")
def addresses(models: Path) -> Iterator[dict[str, str]]:
    with fixed_server(models) as inference:
        for name in ("napper", "stays", "goes"):
            model_factory.onnx_scale(models, name, extra=ASLEEP if name == "napper" else "")
        model_factory.onnx_scale(models, "goes", version=2)
        broken = model_factory.onnx_scale(models, "broken")
        (broken / "1" / "model.onnx").write_bytes(b"no model")
        process = inference.start("--process-heartbeat-timeout-secs=6")
        yield {"http_url": process.http_url, "grpc_url": process.grpc, "metrics_url": f"http://{process.metrics}"}


@pytest.fixture
def server(addresses: dict[str, str], db: None) -> Server:
    server = server_ensure_local()
    Server.objects.filter(pk=server.pk).update(**addresses)
    server.refresh_from_db()
    return server


def told_by_feed(server: Server) -> dict[tuple[str, int], str]:
    """What the feed's first event, which has every version, says in the dashboard's words."""

    async def read() -> dict[tuple[str, int], str]:
        reader = FeedReader()
        async with asyncio.timeout(PATIENCE_S), AsyncServerClient(server) as client:
            async for event in client.feed():
                reader.read(event)
                if reader.states:
                    return reader.states
        raise AssertionError("no event came")

    return asyncio.run(read())


def words(server: Server) -> dict[tuple[str, int], str]:
    """What pages show, from the server's index; the feed says the same."""
    found = told_by_index(server)
    assert told_by_feed(server) == found
    return found


def told_by_index(server: Server) -> dict[tuple[str, int], str]:
    model_states_record([Report(server, version_statuses(server_client(server).index()))])
    return {(row.model_name, row.version): row.word for row in ModelState.objects.all()}


def until(server: Server, condition: Callable[[dict[tuple[str, int], str]], bool]) -> None:
    """Wait for the words of the index to meet `condition` while the feed says the same; the rows are of that reading."""

    def both_say_it() -> bool:
        found = told_by_index(server)
        return condition(found) and told_by_feed(server) == found

    wait_until(both_say_it, what="the words")


def test_the_dashboard_reads_fields_of_the_index_and_the_feed(server: Server, models: Path) -> None:
    client = server_client(server)
    for name in ("napper", "stays", "goes"):
        client.load(name)
    with pytest.raises(DashboardError):
        client.load("broken")
    # Version 1 of "goes" is never loaded: the policy wants the newest.
    assert words(server) == {
        ("napper", 1): "asleep",
        ("stays", 1): "ready",
        ("goes", 2): "ready",
        ("broken", 1): "failed",
    }
    rows = {row["name"]: row for row in client.index()}
    assert [rows[name]["failed"] for name in ("napper", "stays", "broken")] == [False, False, True]
    assert {
        state_for_plan(status) for status in version_statuses(client.index()) if status.name in ("napper", "stays")
    } == {"READY"}
    model_factory.onnx_scale(models, "goes", version=3)
    client.load("goes")
    until(server, lambda now: (now["goes", 2], now["goes", 3]) == ("unloaded", "ready"))
    for name in ("goes", "stays", "broken"):
        client.unload(name)
    until(server, lambda now: {now["goes", 3], now["stays", 1]} == {"unloaded"})
    assert (words(server)["napper", 1], words(server)["broken", 1]) == ("asleep", "unloaded")
    client.load("stays")
    assert words(server)["stays", 1] == "ready"
    # A sleeper whose load for its first request fails is no sleeper that is well.
    (models / "napper" / "1" / "model.onnx").write_bytes(b"no model")
    assert client.infer_raw("napper", BODY, {}).status >= 400
    until(server, lambda now: now["napper", 1] == "failed")
    row = ModelState.objects.get(model_name="napper")
    assert (row.failed, row.complaint) == (True, row.reason)
    # It is there all the same: loading it again would change nothing.
    assert [state_for_plan(status) for status in version_statuses(client.index()) if status.name == "napper"] == [
        "READY"
    ]
    server_lost(server=server, reason=Unreachable("gone").message)
    assert {row.word for row in ModelState.objects.filter(model_name__in=("napper", "stays"))} == {"failed"}


def test_a_version_whose_process_hangs_is_neither_ready_nor_loaded_again(server: Server, models: Path) -> None:
    model_factory.python_scale(models, "stops")
    client = server_client(server)
    client.load("stops")
    os.kill(next(pid for pid in descendants(os.getpid()) if "stops_0" in "".join(command_line(pid))), signal.SIGSTOP)
    until(server, lambda now: now["stops", 1] == "failed")
    row = ModelState.objects.get(model_name="stops")
    assert row.state == "READY", "Triton's word for what is loaded"
    assert "its process has given no sign of life" in row.complaint
    assert _judge("loaded", [1], [row], "", Spread(0, 1)) == ("failed", row.complaint)
    assert [state_for_plan(status) for status in version_statuses(client.index()) if status.name == "stops"] == [
        "READY"
    ]
    until(server, lambda now: now["stops", 1] == "ready")


def test_what_nvidias_server_says_of_an_unloaded_version_is_understood() -> None:
    row = {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    assert [status.condition for status in version_statuses([row])] == ["unloaded"]
