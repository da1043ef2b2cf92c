"""Requests of live traffic are shown to people who confirm that they may see them, and kept only when somebody asks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.models import AuditEntry, Example, Model, Server
from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.support.clients import clients
from tests.support.ports import HOST
from tests.support.serving_process import ServerProcess

pytestmark = pytest.mark.django_db
SAMPLE = "/api/v1/models/relu/traffic_sample"


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models") / "relu"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(relu_bytes())
    (folder / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(folder.parent) as server:
        yield server


@pytest.fixture
def asking(inference: ServerProcess, api: APIClient) -> APIClient:
    urls = {"http_url": f"http://{inference.http}", "grpc_url": inference.grpc, "metrics_url": f"http://{HOST}:1"}
    Server.objects.create(name="local", bundled=True, **urls)
    Model.objects.create(name="relu")
    return api


def traffic(server: ServerProcess) -> AbstractContextManager[None]:
    """Requests of one client, one after another, until the block ends."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [3, -1, 0.5, 0]}]}
    return clients(lambda http: http.post(f"http://{server.http}/v2/models/relu/infer", json=body))


def test_what_is_sampled_is_shown_and_becomes_golden_when_it_is_kept(
    asking: APIClient, inference: ServerProcess
) -> None:
    with traffic(inference):
        found = asking.post(SAMPLE, {"count": 2, "consent": True}, format="json").json()
    first, _ = found["candidates"]
    assert (first["version"], first["inputs"]) == (1, "x FP32 [1, 4]")
    assert first["expected"]["outputs"][0]["data"] == [3.0, 0.0, 0.5, 0.0]
    assert not Example.objects.exists()
    told = AuditEntry.objects.get(action="traffic.sample")
    assert told.summary == "Asked to see up to 2 requests that clients send to relu on local within 30 s"
    kept = {"name": "live", "request": first["request"], "expected": first["expected"], "golden": True}
    answer = asking.post("/api/v1/models/relu/examples", {**kept, "source": "traffic"}, format="json")
    assert answer.status_code == 201, answer.content
    assert asking.post("/api/v1/models/relu/golden_checks", {}, format="json").json()["passed"]


def test_without_traffic_there_is_nothing_to_keep_when_the_time_is_over(asking: APIClient) -> None:
    found = asking.post(SAMPLE, {"seconds": 1, "consent": True}, format="json").json()
    assert found["candidates"] == []
    assert not any(found["skipped"].values())


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "consent"),
        ({"consent": True, "count": 21}, "count"),
        ({"consent": True, "seconds": 61}, "seconds"),
        ({"consent": True, "seconds": 0}, "seconds"),
    ],
)
def test_nothing_is_sampled_without_consent_or_beyond_the_bounds(
    asking: APIClient, asked: dict[str, Any], field: str
) -> None:
    answer = asking.post(SAMPLE, asked, format="json")
    assert answer.status_code == 400
    assert [problem["field"] for problem in answer.json()["problems"]] == [field]
    assert not AuditEntry.objects.exists()


def test_a_model_that_does_not_serve_is_said_in_the_servers_words(asking: APIClient, data_folder: Path) -> None:
    Model.objects.create(name="other")
    answer = asking.post("/api/v1/models/other/traffic_sample", {"consent": True}, format="json")
    assert answer.status_code == 404
    assert "other" in answer.json()["error"]


def test_requests_of_people_go_to_the_server_that_they_choose(asking: APIClient, inference: ServerProcess) -> None:
    local = Server.objects.get()
    urls = {"http_url": local.http_url, "grpc_url": local.grpc_url, "metrics_url": local.metrics_url}
    Server.objects.create(name="other", **urls)
    nobody = f"{HOST}:1"
    Server.objects.filter(pk=local.pk).update(http_url=f"http://{nobody}", grpc_url=nobody)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [3, -1, 0.5, 0]}]
    expected = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [3.0, 0.0, 0.5, 0.0]}]}
    kept = {"name": "one", "request": {"inputs": inputs}, "expected": expected, "golden": True}
    models = "/api/v1/models/relu"
    assert asking.post(f"{models}/examples", kept, format="json").status_code == 201

    def ask(way: str, query: str = "", **json: Any) -> Any:
        return asking.post(f"{models}/{way}{query}", json, format="json")

    for server, status in (("", 503), ("local", 503), ("none", 404), ("other", 200)):
        query = f"?server={server}"
        assert ask("infer", query, inputs=inputs).status_code == status
        assert ask("versions/1/infer", query, inputs=inputs).status_code == status
        assert ask("examples/one/answer", server=server).status_code == status
        assert ask("golden_checks", server=server).status_code == status
    assert ask("infer", "?server=other", inputs=inputs).json()["outputs"][0]["data"] == [3.0, 0.0, 0.5, 0.0]
    assert ask("golden_checks", server="other").json()["passed"]
    assert Example.objects.get().outcome is None, "a run elsewhere is not one of what serves here"
    with traffic(inference):
        assert len(ask("traffic_sample", count=1, consent=True, server="other").json()["candidates"]) == 1
    assert AuditEntry.objects.get(action="traffic.sample").summary.endswith("relu on other within 30 s")
