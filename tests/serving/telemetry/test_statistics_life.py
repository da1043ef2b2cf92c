"""Statistics and metrics live as long as the model: they end when it is unloaded and begin anew when it is loaded."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontends.metrics.live_subscriber import Subscriber
from tests.serving.frontends.raw_http import samples, tensor
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until

ONE = {"inputs": [tensor([1.0], [1, 1])]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository: Path = tmp_path_factory.mktemp("models")
    model_factory.onnx_scale(repository)
    with ServerProcess(repository, "--model-control-mode=explicit") as process:
        yield process


def _control(server: ServerProcess, action: str) -> None:
    assert server.post(f"/v2/repository/models/scale/{action}")[0] == 200
    if action == "unload":
        wait_until(lambda: _state(server) == "UNAVAILABLE", what="unloading")


def _state(server: ServerProcess) -> str:
    return str(server.post("/v2/repository/index")[1][0].get("state"))


def _successes(server: ServerProcess) -> list[int]:
    rows = server.get("/v2/models/stats")[1]["model_stats"]
    return [int(row["inference_stats"]["success"]["count"]) for row in rows]


def _series(server: ServerProcess) -> list[str]:
    return [name for name in samples(server) if 'model="scale"' in name]


def test_an_unloaded_model_leaves_statistics_and_metrics_and_begins_anew(server: ServerProcess) -> None:
    _control(server, "load")
    for _ in range(3):
        assert server.post("/v2/models/scale/infer", ONE)[0] == 200
    assert _successes(server) == [3]
    _control(server, "unload")
    assert _successes(server) == []
    assert _series(server) == []
    status, body = server.get("/v2/models/scale/stats")
    assert status != 200
    assert list(body) == ["error"]
    _control(server, "load")
    assert _successes(server) == [0]
    assert samples(server)['nv_inference_request_success{model="scale",version="1"}'] == 0
    assert server.post("/v2/models/scale/infer", ONE)[0] == 200
    assert _successes(server) == [1]
    assert samples(server)['nv_inference_request_success{model="scale",version="1"}'] == 1
    _control(server, "unload")


def test_the_live_feed_tells_of_the_end_with_counters_at_zero(server: ServerProcess) -> None:
    _control(server, "load")
    assert server.post("/v2/models/scale/infer", ONE)[0] == 200
    with closing(Subscriber(server.metrics)) as subscriber:

        def reported(state: str) -> Any:
            rows = [row for row in subscriber.changes() if row["name"] == "scale"]
            return next((row for row in rows if row["state"] == state), None)

        assert wait_until(lambda: reported("READY"), what="the model")["success"]["count"] == 1
        _control(server, "unload")
        assert wait_until(lambda: reported("UNAVAILABLE"), what="its end")["success"]["count"] == 0


def test_each_reason_of_a_failure_has_its_series_from_the_load_on_with_the_labels_in_tritons_order(
    server: ServerProcess,
) -> None:
    _control(server, "load")
    failures = {
        name: value for name, value in samples(server).items() if name.startswith("nv_inference_request_failure")
    }
    assert failures == {
        f'nv_inference_request_failure{{model="scale",reason="{reason}",version="1"}}': 0
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    _control(server, "unload")
