"""Workers that fail or hang at their start: other models keep serving, and no request waits for ever."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving_process import wait_until
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import TorchServeServer

NOT_YET = """
import os

class Handler:
    def initialize(self, context):
        if not os.path.exists("%s"):
            raise RuntimeError("not yet")

    def handle(self, data, context):
        return ["at last"] * len(data)
"""
HANGS = """
import os, time

class Handler:
    def initialize(self, context):
        while os.path.exists("%s"):
            time.sleep(0.01)

    def handle(self, data, context):
        return ["awake"] * len(data)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeServer]:
    folder = tmp_path_factory.mktemp("failing")
    store = folder / "store"
    (folder / "asleep").touch()
    archive(store / "noop.mar")
    archive(store / "late.mar", handler=NOT_YET % (folder / "ready"), config={"maxRetryTimeoutInSec": 1})
    archive(store / "unable.mar", handler=NOT_YET % (folder / "never"))
    archive(store / "hangs.mar", handler=HANGS % (folder / "asleep"))
    (store / "broken.mar").write_bytes(b"no archive")
    with TorchServeServer(
        folder,
        models=["noop.mar", "late.mar", "hangs.mar", "broken.mar"],
        properties={"default_startup_timeout": 600},
        wait="live",
    ) as running:
        wait_until(lambda: "torchserve_management" in running.addresses)
        yield running


def described(server: TorchServeServer, name: str) -> dict:
    return server.manage("GET", f"/models/{name}").body[0]


def ping(server: TorchServeServer) -> tuple[int, dict]:
    answer = server.ask("torchserve_inference", "GET", "/ping")
    return answer.status, answer.body


def test_a_model_that_fails_or_hangs_at_start_blocks_no_other(server: TorchServeServer) -> None:
    assert server.predict("/predictions/noop", b"x").body == b"x"
    assert [row["modelName"] for row in server.manage("GET", "/models").body["models"]] == ["hangs", "late", "noop"]
    wait_until(lambda: "'broken.mar' is passed over" in server.log, what="the broken archive in the log")


def test_workers_that_failed_are_tried_again_and_unhealthy_once_that_takes_too_long(server: TorchServeServer) -> None:
    wait_until(lambda: ping(server) == (500, {"status": "Unhealthy"}))
    refused = server.predict("/predictions/late", b"x")
    assert refused.status == 503
    assert refused.body["message"].startswith('Model "late" has no worker to serve inference request.')
    (server.folder / "ready").touch()
    wait_until(lambda: described(server, "late")["workers"][0]["status"] == "READY")
    assert server.predict("/predictions/late", b"x").body == b"at last"
    wait_until(
        lambda: ping(server) == (200, {"status": "Healthy"}), what="health"
    )  # though another's workers are on their way


def test_a_prediction_waits_for_the_first_workers(server: TorchServeServer) -> None:
    answers: list[bytes] = []
    asking = threading.Thread(target=lambda: answers.append(server.predict("/predictions/hangs", b"x").body))
    asking.start()
    Path(server.folder, "asleep").unlink()
    asking.join()
    assert answers == [b"awake"]


def test_a_worker_that_hangs_can_be_unregistered(server: TorchServeServer) -> None:
    (server.folder / "asleep").touch()
    asked = "/models?url=hangs.mar&model_name=again&initial_workers=1&synchronous=false"
    assert server.manage("POST", asked).status == 202
    wait_until(lambda: len(server.model_processes()) == 4, what="a process that hangs")
    assert server.manage("DELETE", "/models/again").body == {"status": 'Model "again" unregistered'}
    assert server.manage("GET", "/models/again").status == 404
    assert server.predict("/predictions/noop", b"y").body == b"y"


def test_a_failed_registration_or_scaling_leaves_the_server_ready(server: TorchServeServer) -> None:
    """Balancers ask by V2, KServe's routes and gRPC's health service; the models of the start serve by now."""

    def v2_ready() -> int:
        return server.ask("torchserve_inference", "GET", "/v2/health/ready").status

    wait_until(lambda: v2_ready() == 200)
    assert server.manage("POST", "/models?url=unable.mar").status == 500
    assert v2_ready() == 200
    assert server.manage("POST", "/models?url=unable.mar&initial_workers=0").status == 200
    assert server.manage("PUT", "/models/unable?min_worker=1&synchronous=true").status == 500
    assert v2_ready() == 200
