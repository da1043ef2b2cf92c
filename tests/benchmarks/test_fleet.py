"""The stand-ins of `make bench-fleet` answer as a real server does, and odd servers among many delay no other one."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings

from benchmarks.fleet.stand_in import HOST
from dashboard.models import Model, ModelState, Server, ServerEnvironment, ServerState
from dashboard.shared.choices import DesiredState, ServerStatus
from dashboard.shared.sealing import seal
from dashboard.watch import watcher
from tests.dashboard.processes import fixed_server
from tests.support import model_factory
from tests.support.ports import free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.long]

KEY = settings.SERVER_CONTROL_KEY
INFER = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
# Not of each model and moment: histograms and sums by size, and what memory a load took.
_VARIES = {"counts", "batches", "batch_times", "failures", "instances", "memory", "needs"}

StandIns = tuple[list[int], Callable[[str, list[int]], None]]


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[Callable[[int], StandIns]]:
    """stand_ins(3): the ports of three stand-ins for servers of tmp_path/models, and a function that gives them orders."""
    running: list[subprocess.Popen[bytes]] = []

    def start(count: int) -> StandIns:
        ports = free_ports(count)
        command = [sys.executable, "-m", "benchmarks.fleet.stand_in", str(tmp_path / "models"), "--key", KEY, "--ports"]
        process = subprocess.Popen(
            [*command, *map(str, ports)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        orders = process.stdin

        def order(mode: str, some: list[int]) -> None:
            orders.write(f"{mode} {' '.join(map(str, some))}\n".encode())
            orders.flush()

        return ports, order

    yield start
    for process in running:
        process.kill()
        process.communicate()


def shape(value: Any, name: str = "") -> Any:
    """Return the names and types of an answer."""
    if isinstance(value, dict):
        return "varies" if name in _VARIES else {key: shape(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def feed(address: str) -> tuple[Any, Any]:
    """Return the first two events of a live feed."""
    with httpx.stream("GET", f"{address}/v2/slipway/live", trust_env=False, timeout=PATIENCE_S) as answer:
        told = (orjson.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        return next(told), next(told)


def answers(control: str, metrics: str) -> list[tuple[int, Any]]:
    """Ask what `watch` asks, and return the status and the shape of each answer."""
    with httpx.Client(base_url=control, trust_env=False, timeout=PATIENCE_S) as client:
        key, told = {"slipway-control-key": KEY}, []

        def ask(method: str, path: str, **headers: str) -> None:
            content = None if method == "GET" else b"{}"
            answer = client.request(method, path, content=content, headers=key | headers)
            told.append((answer.status_code, shape(answer.json()) if answer.content else None))

        ask("GET", "/v2")
        ask("POST", "/v2/repository/index")
        ask("POST", "/v2/repository/models/relu/load", **{"slipway-fence": "5"})
        ask("POST", "/v2/repository/models/relu/load", **{"slipway-fence": "5"})
        ask("POST", "/v2/repository/models/relu/load", **{"slipway-fence": "4"})
        ask("POST", "/v2/repository/models/none/load", **{"slipway-fence": "5"})
        ask("POST", "/v2/repository/index", **{"slipway-control-key": "wrong"})
        ask("POST", "/v2/repository/models/relu/load", **{"slipway-control-key": "wrong"})
        ask("POST", "/v2/repository/index")
        ask("GET", "/v2/slipway/models/relu/traffic")
        client.post("/v2/models/relu/infer", json=INFER)
        told += [(200, shape(one)) for one in feed(metrics)]

        def spans() -> Any:
            return client.get("/v2/slipway/requests?after=0", headers=key).json()

        wait_until(lambda: spans()["spans"], what="a span with requests")
        told.append((200, shape(spans())))
        ask("POST", "/v2/repository/models/relu/unload")
        wait_until(lambda: b"UNLOADING" not in client.post("/v2/repository/index", content=b"{}", headers=key).content)
        ask("POST", "/v2/repository/index")
        return told


def test_a_stand_in_answers_as_a_real_server(stand_ins: Callable[[int], StandIns], tmp_path: Path) -> None:
    repository = tmp_path / "models"
    with fixed_server(repository) as real:
        model_factory.onnx_identity(repository, "relu")
        real.start()
        ports, _ = stand_ins(1)
        urls = real.addresses()
        address = f"http://{HOST}:{ports[0]}"
        assert answers(address, address) == answers(urls["http_url"], urls["metrics_url"])


def test_servers_that_hang_refuse_and_flap_delay_no_other_one(
    stand_ins: Callable[[int], StandIns], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_factory.onnx_identity(tmp_path / "models", "relu")
    ports, order = stand_ins(12)
    environment = ServerEnvironment.objects.get(name="production")
    environment.control_key = seal(KEY)
    environment.save()
    for port in ports:
        address = f"http://{HOST}:{port}"
        facts = {"http_url": address, "metrics_url": address, "grpc_url": f"{HOST}:{port}", "environment": environment}
        ServerState.objects.create(server=Server.objects.create(name=f"s-{port}", **facts))
    odd = {"hang": ports[:2], "refuse": ports[2:4], "flap": ports[4:6]}
    well = {f"s-{port}" for port in ports[6:]}

    def serving(name: str) -> set[str]:
        rows = ModelState.objects.filter(model_name=name, state="READY")
        return set(rows.values_list("server__name", flat=True))

    def away() -> int:
        return ServerState.objects.filter(state=ServerStatus.DOWN).count()

    def publish() -> None:
        model_factory.onnx_identity(tmp_path / "models", "late")
        Model.objects.create(name="late", desired_state=DesiredState.LOADED, generation=1)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await sync_to_async(condition)():
                await asyncio.sleep(0.05)

    async def scenario() -> None:
        running = asyncio.create_task(watcher.watch_servers())
        try:
            await until(lambda: len(serving("relu")) == len(ports))
            for mode, some in odd.items():
                order(mode, some)
            await until(lambda: away() >= 4)
            await sync_to_async(publish)()
            await until(lambda: serving("late") >= well)
            assert not await sync_to_async(lambda: serving("late") & {f"s-{port}" for port in ports[:4]})()
            order("well", ports[:6])
            await until(lambda: len(serving("late")) == len(ports))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    Model.objects.create(name="relu", desired_state=DesiredState.LOADED, generation=1)
    monkeypatch.setattr(watcher, "SERVERS_S", 0.2)
    async_to_sync(scenario)()
