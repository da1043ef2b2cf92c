"""TorchServe's workflows: registered as a whole or not at all, and run as ensembles."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository.torchserve.snapshot_files import last_snapshot
from tests.serving.usage.auth_files import entry, write_auth
from tests.support import torchserve_archives
from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import TorchServeServer

FUNCTIONS = """
import json
import time

failures = []

def pre(data, context):
    return data if data is None else [row.get("body") or row.get("data") for row in data]

def join(data, context):
    return data if data is None else [{name: bytes(value).decode() for name, value in row.items()} for row in data]

def boom(data, context):
    if data is not None:
        raise ValueError("boom")

calls = []

def counted(data, context):
    if data is None:
        return None
    calls.append(True)
    return [str(len(calls))] * len(data)

def twice(data, context):
    if data is None:
        return None
    if len(failures) < 2:
        failures.append(True)
        raise ValueError(f"time {len(failures)}")
    return [bytes(data[0]["body"]).decode() + " before, at last"] * len(data)

def slow(data, context):
    if data is not None:
        time.sleep(4 if data[0]["body"] == b"1" else 0)
        return ["in time"] * len(data)
"""
ADDS = """
def handle(data, context):
    return data if data is None else [bytes(row["body"]).decode() + "%s" for row in data]
"""
PARALLEL = """
models:
  min-workers: 1
  max-workers: 1
  batch-size: 2
  max-batch-delay: 10
  one: {url: one.mar}
  two: {url: two.mar, batch-size: 1}
dag:
  pre: [one, two]
  one: [join]
  two: [join]
"""
SEQUENTIAL = "models: {one: {url: one.mar}, two: {url: two.mar}}\ndag: {one: [two]}\n"


def war(store: Path, name: str, spec: str) -> None:
    torchserve_archives.war(store / f"{name}.war", name, spec, functions=FUNCTIONS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeServer]:
    folder = tmp_path_factory.mktemp("workflows")
    store = folder / "store"
    for name in ("one", "two"):
        archive(store / f"{name}.mar", handler=ADDS % f" {name}")
    war(store, "parallel", PARALLEL)
    war(store, "sequential", SEQUENTIAL)
    war(store, "failing", "models: {retry-attempts: 1}\ndag: {pre: [boom]}\n")
    war(store, "again", "models: {retry-attempts: 2}\ndag: {counted: [twice]}\n")
    war(store, "late", "models: {retry-attempts: 0, timeout-ms: 1500}\ndag: {counted: [slow]}\n")
    war(store, "leaves", "models: {one: {url: one.mar}, two: {url: two.mar}}\ndag: {pre: [one, two]}\n")
    war(store, "lost", "models: {one: {url: one.mar}, lost: {url: lost.mar}}\ndag: {one: [lost]}\n")
    war(store, "circle", "models: {one: {url: one.mar}}\ndag: {pre: [one], one: [join], join: [one]}\n")
    war(store, "starts", "models: {one: {url: one.mar}}\ndag: {pre: [one], join: [one]}\n")
    war(store, "numbers", "models: {min-workers: many}\ndag: {pre: [join]}\n")
    war(store, "text", "- no mapping\n")
    with TorchServeServer(folder) as running:
        yield running


@pytest.fixture
def registered(server: TorchServeServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.param
    answered = server.manage("POST", f"/workflows?url={name}.war")
    assert answered.body == {"status": f"Workflow {name} has been registered and scaled successfully."}
    yield name
    assert server.manage("DELETE", f"/workflows/{name}").body == {"status": f'Workflow "{name}" unregistered'}
    assert server.manage("GET", "/models").body == {"models": []}
    assert server.manage("GET", "/workflows").body == {"workflows": []}


@pytest.mark.parametrize("registered", ["parallel"], indirect=True)
def test_answers_of_parallel_models_are_joined_in_a_function(server: TorchServeServer, registered: str) -> None:
    answered = server.predict("/wfpredict/parallel", b"go")
    assert (answered.status, answered.body) == (200, {"one": "go one", "two": "go two"})
    assert answered.headers["content-type"] == "application/json"
    (reported,) = server.manage("GET", "/workflows/parallel").body
    assert reported == {
        "workflowName": "parallel",
        "workflowUrl": "parallel.war",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 2,
        "maxBatchDelay": 10,
        "workflowDag": "{pre=[one, two], one=[join], two=[join]}",
    }
    rows = server.manage("GET", "/models").body["models"]
    assert rows == [
        {"modelName": "parallel__one", "modelUrl": "one.mar"},
        {"modelName": "parallel__two", "modelUrl": "two.mar"},
    ]
    (node,) = server.manage("GET", "/models/parallel__pre").body
    assert ("modelUrl" in node, node["batchSize"], len(node["workers"])) == (False, 1, 1)
    assert server.predict("/predictions/parallel", b"x").status == 404
    again = server.manage("POST", "/workflows?url=parallel.war")
    assert (again.status, again.body["message"]) == (409, "Workflow parallel is already registered.")
    model = server.manage("POST", "/models?url=one.mar&model_name=parallel")
    assert (model.status, model.body["message"]) == (409, "A workflow parallel is already registered.")
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1, 1], "data": ["over V2"]}
    status, body = server.post("/v2/models/parallel/infer", {"inputs": [tensor]})
    assert (status, json.loads(body["outputs"][0]["data"][0])) == (200, {"one": "over V2 one", "two": "over V2 two"})


@pytest.mark.parametrize("registered", ["sequential"], indirect=True)
def test_one_model_feeds_the_next(server: TorchServeServer, registered: str) -> None:
    assert server.predict("/wfpredict/sequential", b"go").body == b"go one two"


@pytest.mark.parametrize("registered", ["leaves"], indirect=True)
def test_several_leaves_answer_by_their_names(server: TorchServeServer, registered: str) -> None:
    assert server.predict("/wfpredict/leaves", b"7").body == {"one": "7 one", "two": "7 two"}


@pytest.mark.parametrize("registered", ["failing"], indirect=True)
def test_a_node_that_fails_is_named(server: TorchServeServer, registered: str) -> None:
    answered = server.predict("/wfpredict/failing", b"x")
    assert (answered.status, answered.body["message"]) == (500, "Error executing boom")


@pytest.mark.parametrize("registered", ["again"], indirect=True)
def test_a_node_that_fails_is_tried_again_and_no_other(server: TorchServeServer, registered: str) -> None:
    assert server.predict("/wfpredict/again", b"x").body == b"1 before, at last"
    assert server.predict("/wfpredict/again", b"x").body == b"2 before, at last"


@pytest.mark.parametrize("registered", ["late"], indirect=True)
def test_a_node_that_takes_too_long_is_named(server: TorchServeServer, registered: str) -> None:
    answered = server.predict("/wfpredict/late", b"x")
    assert (answered.status, answered.body["message"]) == (500, "Error executing slow")


@pytest.mark.parametrize(
    ("asked", "status", "kind", "message"),
    [
        ("POST /workflows", 400, "BadRequestException", "Parameter url is required."),
        (
            "POST /workflows?url=none.war",
            404,
            "WorkflowNotFoundException",
            "Workflow not found in workflow store: none.war",
        ),
        ("POST /workflows?url=circle.war", 400, "InvalidDAGException", "Not a valid DAG"),
        ("POST /workflows?url=starts.war", 400, "InvalidDAGException", "DAG should have only one start node"),
        (
            "POST /workflows?url=numbers.war",
            400,
            "InvalidWorkflowException",
            "min-workers of models must be a whole number from 1 up, not 'many'",
        ),
        (
            "POST /workflows?url=text.war",
            400,
            "InvalidWorkflowException",
            "the specification needs a mapping 'dag', and may have a mapping 'models'",
        ),
        (
            "POST /workflows?url=lost.war",
            500,
            "WorkflowException",
            "Workflow lost has failed to register. Failures: [Workflow Node lost__lost failed to register. Details: Model "
            "not found at: lost.mar]",
        ),
        (
            "POST /workflows?url=one.mar",
            400,
            "InvalidWorkflowException",
            "the archive has no manifest: expected the file 'WAR-INF/MANIFEST.json'",
        ),
        ("GET /workflows/none", 404, "WorkflowNotFoundException", "Workflow not found: none"),
        ("DELETE /workflows/none", 404, "WorkflowNotFoundException", "Workflow not found: none"),
    ],
)
def test_a_failed_registration_leaves_nothing(
    server: TorchServeServer, asked: str, status: int, kind: str, message: str
) -> None:
    answered = server.manage(*asked.split(" "))
    assert answered.body == {"code": status, "type": kind, "message": message}
    assert answered.status == status
    assert server.manage("GET", "/models").body == {"models": []}
    assert server.predict("/wfpredict/none", b"x").status == 404


def test_a_server_that_was_killed_starts_again_with_its_workflows(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    war(tmp_path / "store", "chain", "models: {}\ndag: {pre: [join]}\n")
    with TorchServeServer(tmp_path) as server:
        assert server.manage("POST", "/workflows?url=chain.war&workflow_name=own").status == 200
        server.signal(signal.SIGKILL, PATIENCE_S)
    with TorchServeServer(tmp_path, f"--ts-config={last_snapshot(tmp_path / 'logs')}") as server:
        assert server.predict("/wfpredict/own", b"x").body == {"body": "x"}
        assert server.manage("GET", "/models").body == {"models": []}


def test_requests_to_a_workflow_count_and_are_refused_over_a_quota(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    war(tmp_path / "store", "functions", "models: {}\ndag: {pre: [counted]}\n")
    quota = {"of": "person", "name": "ada", "requests_per_day": 1}
    auth = write_auth(tmp_path / "auth.json", [entry("a", "ada")], [quota])
    with TorchServeServer(tmp_path, f"--auth-file={auth}") as server:
        assert server.manage("POST", "/workflows?url=functions.war").status == 200
        headers = {"Authorization": "Bearer a"}
        assert server.predict("/wfpredict/functions", b"go", headers).status == 200
        refused = server.predict("/wfpredict/functions", b"go", headers)
        assert (refused.status, refused.body["type"]) == (429, "QuotaReachedException")
        assert int(refused.headers["retry-after"]) >= 1
