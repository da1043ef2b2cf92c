"""The model and version of a remote arm become parts of a path: none leaves the listed address with its secret header."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.traffic.remotes.services import Service, service
from tests.serving.traffic.rollouts_in_process import parameter
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess

SECRET = "Bearer hunter2"
NAMES = [
    *(
        ".",
        "..",
        "...",
        " ",
        "../x",
        "../../admin",
        "a/b",
        "/",
        "//",
        "a/",
        "..\\x",
        "a\\..\\b",
        "..;",
        "..;a=b",
        "a;b",
    ),
    *("a?b", "a#b", "%2e%2e", "%2E%2E", ".%2e", "%252e%252e", "..%2fx", "a%2fb", "..%5cx", "a%00", "a\nb", "a\r\nX: y"),
    *("..\t", ".. "),
]


@pytest.fixture(scope="module")
def other() -> Iterator[Service]:
    with service(lambda received: (404, {}, b"{}")) as running:
        yield running


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("names") / "models"
    onnx_scale(repository, factor=1.0)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path, other: Service) -> Iterator[ServerProcess]:
    remotes = repository.parent / "remotes.json"
    remotes.write_text(json.dumps({f"{other.url}/team": {"headers": {"Authorization": SECRET}}}))
    flags = ("--model-control-mode=explicit", "--load-model=scale", f"--traffic-remotes={remotes}")
    with ServerProcess(repository, *flags) as running:
        yield running


def load(server: ServerProcess, repository: Path, candidate: dict[str, Any]) -> tuple[int, Any]:
    """Load the model with a rollout that sends every request to a server elsewhere."""
    onnx_scale(
        repository, factor=1.0, extra=parameter("traffic", {"rollout": "r-1", "candidate": candidate, "weight": 100})
    )
    return server.post("/v2/repository/models/scale/load")


@pytest.mark.parametrize("protocol", ["v2", "torchserve"])
@pytest.mark.parametrize("field", ["model", "version"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_may_lead_elsewhere_is_refused(
    server: ServerProcess, repository: Path, other: Service, protocol: str, field: str, name: str
) -> None:
    status, answer = load(server, repository, {"url": f"{other.url}/team", "protocol": protocol, field: name})
    assert status == 400, answer
    assert f"expected '{field}' to be a name with" in answer["error"]
    assert "hunter2" not in answer["error"]
    assert other.received == []


@pytest.mark.parametrize("path", ["..;/admin", "..;a/admin", "a;b", "%2e%2e/admin", "..\\admin", "/admin"])
def test_an_address_that_may_lead_elsewhere_is_not_below_the_listed_one(
    server: ServerProcess, repository: Path, other: Service, path: str
) -> None:
    status, answer = load(server, repository, {"url": f"{other.url}/team/{path}"})
    assert status == 400, answer
    assert other.received == []


def test_a_plain_name_is_asked_below_the_address_with_its_headers(
    server: ServerProcess, repository: Path, other: Service
) -> None:
    names = {"model": "größe 1.5 (a+b)", "version": "1.0-rc"}
    assert load(server, repository, {"url": f"{other.url}/team", "protocol": "v2", **names})[0] == 200
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    assert server.post("/v2/models/scale/infer", {"inputs": [tensor]})[0] == 503
    asked = other.received[-1]
    assert asked.path == "/team/v2/models/gr%C3%B6%C3%9Fe%201.5%20%28a%2Bb%29/versions/1.0-rc/infer"
    assert asked.headers["authorization"] == SECRET
    other.received.clear()
