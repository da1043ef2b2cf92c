"""TorchServe's management API: its answers, and the models that serve after them."""

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.torchserve.registry.registrations import MAX_FETCHES
from tests.support.serving_process import wait_until
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import Answered, TorchServeServer

ANSWERS = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        if context.get_request_header(0, "describe"):
            return [{"labels": ["cat", "dog"]}]
        return ["%s"] * len(data)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeServer]:
    folder = tmp_path_factory.mktemp("torchserve")
    store = folder / "store"
    for version in ("1.0", "2.0", "3.0-beta"):
        archive(store / f"noop-{version}.mar", "noop", version=version, handler=ANSWERS % version)
    archive(store / "broken.mar", handler="raise ValueError('not today')")
    archive(store / "config.mar", config={"minWorkers": 2, "maxWorkers": 3, "batchSize": 8, "responseTimeout": 7})
    (store / "junk.mar").write_bytes(b"no archive")
    (store / "junk.mar").chmod(0o600)
    with TorchServeServer(folder, models=["noop=noop-1.0.mar"]) as running:
        yield running


def described(server: TorchServeServer, name: str) -> dict:
    answered = server.manage("GET", f"/models/{name}")
    assert answered.status == 200, answered
    return answered.body[0]


@pytest.fixture
def registered(server: TorchServeServer) -> Iterator[str]:
    """A model with one worker, for the test alone."""
    answered = server.manage("POST", "/models?url=noop-1.0.mar&model_name=own&initial_workers=1")
    assert answered.status == 200, answered
    yield "own"
    for version in ("3.0-beta", "2.0", "1.0"):
        server.manage("DELETE", f"/models/own/{version}")
    server.manage("DELETE", "/models/own")


def test_a_model_of_the_command_line_is_described_with_its_worker(server: TorchServeServer) -> None:
    found = described(server, "noop")
    assert (found["modelVersion"], found["modelUrl"], found["loadedAtStartup"]) == ("1.0", "noop-1.0.mar", True)
    assert (found["minWorkers"], found["maxWorkers"], found["batchSize"], found["maxBatchDelay"]) == (1, 1, 1, 100)
    (worker,) = found["workers"]
    assert worker["status"] == "READY"
    assert worker["pid"] in server.model_processes()
    assert worker["memoryUsage"] > 0
    assert found["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}


def test_time_outs_of_nought_stand_for_the_default(server: TorchServeServer) -> None:
    asked = "/models?url=noop-1.0.mar&model_name=hurried&initial_workers=1&startup_timeout=0&response_timeout=0"
    try:
        assert server.manage("POST", asked).status == 200
        assert server.predict("/predictions/hurried", b"x").status == 200
    finally:
        server.manage("DELETE", "/models/hurried")


@pytest.mark.parametrize(
    ("asked", "status", "kind", "message"),
    [
        ("POST /models", 400, "BadRequestException", "Parameter url is required."),
        ("POST /models?url=", 404, "ModelNotFoundException", "empty url"),
        (
            "POST /models?url=../x.mar",
            404,
            "ModelNotFoundException",
            "Relative path is not allowed in url: ../x.mar",
        ),
        ("POST /models?url=nope.mar", 404, "ModelNotFoundException", "Model not found at: nope.mar"),
        ("POST /models?url=/etc/passwd", 404, "ModelNotFoundException", "Model not found at: /etc/passwd"),
        ("POST /models?url=/etc", 404, "ModelNotFoundException", "Model not found at: /etc"),
        (
            "POST /models?url=noop-1.0.mar",
            409,
            "ConflictStatusException",
            "Model version 1.0 is already registered for model noop",
        ),
        (
            "POST /models?url=noop-2.0.mar&runtime=java",
            400,
            "BadRequestException",
            "Invalid RuntimeType value: java",
        ),
        (
            "POST /models?url=http://[::1/x.mar",
            400,
            "DownloadArchiveException",
            "Failed to download archive from: http://[::1/x.mar",
        ),
        (
            "POST /models?url=noop-2.0.mar&model_name=a/b",
            400,
            "BadRequestException",
            "Model name 'a/b' cannot be used: a model name does not begin with '.' and has no '/'",
        ),
        (
            "PUT /models/noop?min_worker=5000",
            400,
            "BadRequestException",
            "a model has at most 1024 workers, got 5000",
        ),
        ("GET /models/zzz", 404, "ModelNotFoundException", "Model not found: zzz"),
        (
            "GET /models/noop/7",
            404,
            "ModelVersionNotFoundException",
            "Model version: 7 does not exist for model: noop",
        ),
        ("PUT /models/zzz?min_worker=1", 404, "ModelNotFoundException", "Model not found: zzz"),
        (
            "PUT /models/noop?min_worker=3&max_worker=1",
            400,
            "BadRequestException",
            "max_worker cannot be less than min_worker.",
        ),
        (
            "PUT /models/noop/9/set-default",
            404,
            "ModelVersionNotFoundException",
            "Model version 9 does not exist for model noop",
        ),
        ("DELETE /models/zzz", 404, "ModelNotFoundException", "Model not found: zzz"),
        (
            "PATCH /models",
            405,
            "MethodNotAllowedException",
            "Requested method is not allowed, please refer to API document.",
        ),
        (
            "GET /nothing",
            404,
            "ResourceNotFoundException",
            "Requested resource is not found, please refer to API document.",
        ),
    ],
)
def test_a_refusal_is_in_torchserves_words(
    server: TorchServeServer, asked: str, status: int, kind: str, message: str
) -> None:
    answered = server.manage(*asked.split(" "))
    assert answered.body == {"code": status, "type": kind, "message": message}
    assert answered.status == status


def test_a_file_that_is_no_archive_is_refused_and_leaves_nothing(server: TorchServeServer) -> None:
    answered = server.manage("POST", "/models?url=junk.mar")
    assert (answered.status, answered.body["type"]) == (400, "InvalidModelException")
    assert server.manage("GET", "/models").body["models"] == [{"modelName": "noop", "modelUrl": "noop-1.0.mar"}]


def test_a_url_that_leads_nowhere_is_refused_while_others_are_being_fetched(server: TorchServeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(MAX_FETCHES) as threads:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asked = [
            threads.submit(server.manage, "POST", f"/models?url={address}/{name}.mar") for name in range(MAX_FETCHES)
        ]
        connections = [silent.accept()[0] for _ in asked]
        refused = [
            server.manage("POST", f"/{what}?url={address}/../noop.mar").status for what in ("models", "workflows")
        ]
        assert not any(one.done() for one in asked)
        for connection in connections:
            connection.close()
        assert [one.result().status for one in asked] == [400] * MAX_FETCHES
        assert refused == [404, 404]


def test_a_model_whose_worker_fails_is_gone_again(server: TorchServeServer) -> None:
    answered = server.manage("POST", "/models?url=broken.mar&initial_workers=1")
    assert answered.body["message"] == "Failed to start workers for model broken version: 1.0"
    assert answered.status == 500
    assert server.manage("GET", "/models/broken").status == 404
    wait_until(lambda: "not today" in server.log, what="the worker's last words in the log")


def test_workers_come_and_go_while_the_others_live_on(server: TorchServeServer, registered: str) -> None:
    first = described(server, registered)["workers"][0]["pid"]
    answered = server.manage("PUT", f"/models/{registered}?min_worker=2&synchronous=true")
    assert (answered.status, answered.body) == (200, {"status": "Workers scaled to 2 for model: own"})
    pids = [worker["pid"] for worker in described(server, registered)["workers"]]
    assert len(pids) == 2
    assert first in pids
    answered = server.manage("PUT", f"/models/{registered}/1.0?min_worker=0&max_worker=0&synchronous=true")
    assert answered.body == {"status": "Workers scaled to 0 for model: own, version: 1.0"}
    found = described(server, registered)
    assert (found["workers"], found["minWorkers"]) == ([], 0)
    answered = server.manage("PUT", f"/models/{registered}?min_worker=1")
    assert (answered.status, answered.body) == (202, {"status": "Processing worker updates..."})
    wait_until(lambda: described(server, registered)["workers"])


def test_versions_stand_side_by_side_and_one_is_the_default(server: TorchServeServer, registered: str) -> None:
    for version in ("2.0", "3.0-beta"):
        url = f"/models?url=noop-{version}.mar&model_name=own&initial_workers=1"
        answered = server.manage("POST", url)
        assert answered.body == {"status": f'Model "own" Version: {version} registered with 1 initial workers'}
    rows = server.manage("GET", f"/models/{registered}/all").body
    assert [row["modelVersion"] for row in rows] == ["1.0", "2.0", "3.0-beta"]
    assert described(server, registered)["modelVersion"] == "1.0"
    answered = server.manage("PUT", f"/models/{registered}/3.0-beta/set-default")
    assert answered.body == {"status": 'Default version successfully updated for model "own" to "3.0-beta"'}
    assert described(server, registered)["modelVersion"] == "3.0-beta"
    refused = server.manage("DELETE", f"/models/{registered}/3.0-beta")
    assert (refused.status, refused.body["type"]) == (403, "InvalidModelVersionException")
    assert server.manage("DELETE", f"/models/{registered}/1.0").body == {"status": 'Model "own" unregistered'}


def test_an_archive_sets_the_fields_that_a_request_leaves_out(server: TorchServeServer) -> None:
    answered = server.manage("POST", "/models?url=config.mar&batch_size=3")
    assert answered.body == {"status": 'Model "config" Version: 1.0 registered with 2 initial workers'}
    try:
        found = described(server, "config")
        assert (found["minWorkers"], found["maxWorkers"], len(found["workers"])) == (2, 3, 2)
        assert (found["batchSize"], found["responseTimeout"]) == (3, 7)
    finally:
        server.manage("DELETE", "/models/config")


def test_a_registration_may_be_json(server: TorchServeServer) -> None:
    asked = {"url": "noop-2.0.mar", "model_name": "json", "initial_workers": 1, "synchronous": True, "batch_size": 4}
    answered = server.manage("POST", "/models", asked)
    assert (answered.status, answered.body["status"]) == (
        200,
        'Model "json" Version: 2.0 registered with 1 initial workers',
    )
    assert described(server, "json")["batchSize"] == 4
    server.manage("DELETE", "/models/json")
    malformed = server.manage("POST", "/models", b'{"url":', {"Content-Type": "application/json"})
    assert (malformed.status, malformed.body["type"]) == (400, "JsonSyntaxException")


def test_a_handler_adds_its_own_description(server: TorchServeServer) -> None:
    (found,) = server.manage("GET", "/models/noop?customized=true").body
    assert found["customizedMetadata"] == {"labels": ["cat", "dog"]}


def test_an_unregistered_model_is_forgotten_over_v2_too(server: TorchServeServer) -> None:
    for _ in range(2):  # and may come again
        assert server.manage("POST", "/models?url=noop-1.0.mar&model_name=passing&initial_workers=1").status == 200
        assert server.predict("/predictions/passing", b"x").status == 200
        assert "passing" in str(server.ask("http", "POST", "/v2/repository/index").body)
        assert server.manage("DELETE", "/models/passing").status == 200
        assert "passing" not in str(server.ask("http", "POST", "/v2/repository/index").body)
        assert server.ask("torchserve_inference", "GET", "/v2/models/passing").status == 404
    assert server.ask("torchserve_inference", "GET", "/v2/health/ready").status == 200


def test_the_list_comes_in_pages(server: TorchServeServer, registered: str) -> None:
    first = server.manage("GET", "/models?limit=1").body
    assert first == {"nextPageToken": "1", "models": [{"modelName": "noop", "modelUrl": "noop-1.0.mar"}]}
    last = server.manage("GET", "/models?limit=1&next_page_token=1").body
    assert [row["modelName"] for row in last["models"]] == ["own"]
    assert server.manage("GET", "/models?limit=0").body == {"nextPageToken": "0", "models": []}


def test_a_rewritten_archive_does_not_change_the_serving_model(server: TorchServeServer) -> None:
    path = Path(server.store, "rewritten.mar")
    archive(path, version="1.0", handler=ANSWERS % "old")
    assert server.manage("POST", "/models?url=rewritten.mar&initial_workers=1").status == 200
    before = described(server, "rewritten")["workers"][0]["pid"]
    path.write_bytes(b"half an archi")
    assert server.manage("PUT", "/models/rewritten?min_worker=2&synchronous=true").status == 200
    assert before in [worker["pid"] for worker in described(server, "rewritten")["workers"]]
    server.manage("DELETE", "/models/rewritten")


def test_the_routes_of_a_model_are_described(server: TorchServeServer) -> None:
    reported = server.manage("OPTIONS", "/models/noop").body
    assert reported["info"]["title"] == "RESTful Management API for: noop"
    assert set(reported["paths"]["/models/{model_name}"]) == {"get", "put", "delete"}
    assert server.manage("OPTIONS", "/models/zzz").status == 404
    assert "/models" in server.manage("OPTIONS", "/").body["paths"]


def test_v2_loads_nothing_on_a_server_of_registered_models(server: TorchServeServer) -> None:
    status, body = server.post("/v2/repository/models/noop/unload")
    assert status == 503
    assert "TorchServe's management API" in body["error"]


def test_many_clients_that_change_the_same_models_leave_them_whole(server: TorchServeServer) -> None:
    """Each of them registers, scales and unregisters versions of two models; another one predicts all the while."""
    answers: list[Answered] = []

    def change(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(12):
            name, version = chance.choice("ab"), chance.choice(("1.0", "2.0"))
            workers, waits = chance.choice((0, 1)), chance.choice(("true", "false"))
            asked = chance.choice(
                (
                    f"POST /models?url=noop-{version}.mar&model_name={name}&initial_workers={workers}&synchronous={waits}",
                    f"PUT /models/{name}/{version}?min_worker=1&synchronous=true",
                    f"PUT /models/{name}/{version}/set-default",
                    f"DELETE /models/{name}/{version}",
                    "GET /models",
                )
            )
            answers.append(server.manage(*asked.split(" ")))

    threads = [threading.Thread(target=change, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert server.predict("/predictions/noop", b"x").body == 1.0
    unexplained = [one for one in answers if one.status == 500 and "Failed to start workers" not in str(one.body)]
    assert unexplained == []
    assert "failed unexpectedly" not in server.log
    for _ in range(2):  # the default version goes last
        for name in "ab":
            for version in ("1.0", "2.0"):
                server.manage("DELETE", f"/models/{name}/{version}")
    assert [row["modelName"] for row in server.manage("GET", "/models").body["models"]] == ["noop"]
