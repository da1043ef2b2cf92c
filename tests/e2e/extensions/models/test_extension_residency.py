"""`slipway.residency` with the stock clients: what a client sees of models that load on their first request and sleep again."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import refused
from tests.support.model_factory import onnx_mlp, onnx_scale
from tests.support.serving_process import ServerProcess, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
LARGE = (1024, 4096, 1024)  # 32 MB of weights
WIDE = {"INPUT": np.ones((1, 1024), np.float32)}


def asking_for(mode: str, **more: float) -> str:
    value = json.dumps(json.dumps({"mode": mode, **more}))
    return f'parameters {{ key: "slipway.residency" value {{ string_value: {value} }} }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "brief", 2.0, extra=asking_for("on_demand", idle_seconds=0.1))
    onnx_scale(repository, "on_demand", 3.0, extra=asking_for("on_demand", idle_seconds=3600))
    onnx_mlp(repository, "pinned", LARGE)
    for name in ("first", "second"):
        onnx_mlp(repository, name, LARGE, extra=asking_for("evictable"))
    # Too little for one of them: whichever was not used last makes room.
    with ServerProcess(repository, "--memory-budget=1000000") as server:
        yield server
        assert "Traceback" not in server.log


def state(client: TritonClient, model: str) -> tuple[str, str]:
    rows = client.described("get_model_repository_index")
    return next((row.get("state", ""), row.get("reason", "")) for row in rows if row["name"] == model)


def asleep(client: TritonClient, model: str) -> bool:
    found, reason = state(client, model)
    return found == "UNAVAILABLE" and reason.startswith("asleep")


def test_a_model_loads_on_its_first_request_and_sleeps_when_idle(client: TritonClient) -> None:
    for _ in range(2):
        wait_until(lambda: asleep(client, "brief"), what="sleep")
        assert client.infer("brief", ONE).outputs["OUTPUT0"].item() == 2


def test_a_sleeping_model_is_ready_and_describes_itself(client: TritonClient) -> None:
    wait_until(lambda: asleep(client, "brief"), what="sleep")
    assert client.call("is_model_ready", "brief") is True
    assert client.described("get_model_metadata", "brief")["inputs"][0]["name"] == "INPUT0"
    assert client.described("get_model_config", "brief")["max_batch_size"] == 8


def test_many_first_requests_wait_for_one_load(client: TritonClient) -> None:
    wait_until(lambda: asleep(client, "brief"), what="sleep")
    found = client.many("brief", [{"INPUT0": np.full((1, 1), value, np.float32)} for value in range(8)])
    assert [answer.outputs["OUTPUT0"].item() for answer in found] == [2 * value for value in range(8)]


def test_a_wrong_first_request_is_refused(client: TritonClient) -> None:
    refused(client, "INVALID_ARG", client.infer, "on_demand", {"NONE": ONE["INPUT0"]})
    assert client.infer("on_demand", ONE).outputs["OUTPUT0"].item() == 3


def test_the_least_recently_used_model_makes_room(client: TritonClient) -> None:
    for used, other in (("first", "second"), ("second", "first")):
        assert client.infer(used, WIDE).outputs["OUTPUT"].shape == (1, 1024)
        wait_until(lambda other=other: asleep(client, other), what=f"{other} to make room")
    assert state(client, "pinned")[0] == "READY"
