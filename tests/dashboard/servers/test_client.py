"""The client: every route of a real server, refusals as sentences, a server that is not there."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from django.conf import settings

from dashboard.models import Server
from dashboard.servers.client import AsyncServerClient, Unreachable
from dashboard.servers.messages import HelloEvent, StatsEvent
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound
from tests.dashboard.processes import fixed_server, server_client
from tests.support import model_factory
from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S

BODY = orjson.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository: Path = tmp_path_factory.mktemp("client") / "models"
    with fixed_server(repository) as inference:
        model_factory.onnx_identity(repository, "identity")
        process = inference.start()
        http, grpc, metrics = process.http_url, process.grpc, f"http://{process.metrics}"
        yield Server(name="local", http_url=http, grpc_url=grpc, metrics_url=metrics, bundled=True)


def test_it_loads_infers_and_unloads(server: Server):
    client = server_client(server)
    client.load("identity")
    assert [(row["name"], row["state"]) for row in client.index()] == [("identity", "READY")]
    answer = client.infer_raw("identity", BODY, {"Content-Type": "application/json"})
    assert (answer.status, orjson.loads(answer.body)["outputs"][0]["data"]) == (200, [1.0, 2.0])
    assert client.infer_raw("identity", BODY, {}, version="1").status == 200
    client.unload("identity")


def test_a_refusal_has_the_servers_own_words(server: Server):
    client = server_client(server)
    with pytest.raises((Invalid, NotFound), match="no-such-model"):
        client.load("no-such-model")
    answer = client.infer_raw("no-such-model", BODY, {})
    assert answer.status in (400, 404)
    assert "no-such-model" in orjson.loads(answer.body)["error"]


def test_the_reason_of_a_failed_load_is_shown_without_the_protocols_prefix(server: Server, tmp_path: Path):
    with fixed_server(tmp_path / "models") as inference:
        model_factory.onnx_identity(tmp_path / "models", "cut")
        (tmp_path / "models" / "cut" / "1" / "model.onnx").write_bytes(b"\x08")
        url = inference.start().http_url
        with pytest.raises(Invalid) as refused:
            server_client(Server(name="other", http_url=url, bundled=True)).load("cut")
    assert "UNAVAILABLE" not in refused.value.message
    assert "load failed for model 'cut'" in str(refused.value.details["error"])
    assert str(refused.value.details["error"]).endswith(refused.value.message)


def test_a_name_never_leaves_its_place_in_the_path(server: Server):
    with pytest.raises((Invalid, NotFound)):
        server_client(server).unload("../../index?")
    assert server_client(server).infer_raw("../health/ready?", BODY, {}).status in (400, 404)


def test_control_routes_are_closed_without_the_key(server: Server):
    assert httpx.post(f"{server.http_url}/v2/repository/index", content=b"{}", timeout=PATIENCE_S).status_code in (
        401,
        403,
    )
    stranger = Server(name="far", http_url=server.http_url, grpc_url="", metrics_url="", bundled=False)
    with pytest.raises(Forbidden) as error:
        server_client(stranger).index()
    assert settings.SERVER_CONTROL_KEY not in error.value.message


def test_where_tokens_are_required_the_dashboard_shows_its_own(tmp_path: Path, settings: Any):
    settings.REQUIRE_TOKENS = True
    settings.AUTH_FILE = tmp_path / "auth.json"
    sha256 = hashlib.sha256(settings.SERVER_INFER_KEY.encode()).hexdigest()
    token = {"name": "dashboard", "sha256": sha256, "models": ["*"], "rights": ["infer"], "expires_at": None}
    settings.AUTH_FILE.write_bytes(orjson.dumps({"tokens": [token]}))
    with fixed_server(tmp_path / "models") as inference:
        model_factory.onnx_identity(tmp_path / "models", "identity")
        inference.start(f"--auth-file={settings.AUTH_FILE}")
        local = Server(name="local", bundled=True, **inference.addresses())
        client = server_client(local)
        client.load("identity")
        assert client.infer_raw("identity", BODY, {}).status == 200
        assert (
            httpx.post(f"{local.http_url}/v2/models/identity/infer", content=BODY, timeout=PATIENCE_S).status_code
            == 401
        )


def test_a_server_that_is_not_there_is_one_sentence():
    nobody = Server(name="gone", http_url=f"http://127.0.0.1:{free_port()}", metrics_url="", grpc_url="")
    with pytest.raises(Unreachable, match="inference server gone does not answer: nothing listens"):
        server_client(nobody).index()


def test_the_same_routes_are_awaited(server: Server):
    async def scenario() -> list[str]:
        async with AsyncServerClient(server) as client:
            return [row["name"] for row in await client.index()]

    assert asyncio.run(scenario()) == ["identity"]


def test_the_feed_greets_then_speaks_and_its_end_is_noticed(server: Server):
    async def scenario() -> list[type]:
        kinds = []
        async with AsyncServerClient(server) as client:
            async for event in client.feed():
                kinds.append(type(event))
                if len(kinds) == 3:
                    break
        return kinds

    assert asyncio.run(scenario()) == [HelloEvent, StatsEvent, StatsEvent]
