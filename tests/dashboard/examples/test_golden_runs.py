"""Golden requests run against a real server: what passes, what fails and by how much, and what the server refuses."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.examples.selectors import golden_checks
from dashboard.models import Example, Model, Server
from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.support.ports import HOST
from tests.support.serving_process import ServerProcess

pytestmark = pytest.mark.django_db
HALVES = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            h, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("h", "b"))
            outputs = [pb_utils.Tensor("h2", h / np.float16(2)), pb_utils.Tensor("b2", b)]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""
HALVES_CONFIG = """backend: "python"
input [ { name: "h" data_type: TYPE_FP16 dims: [ 2 ] }, { name: "b" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "h2" data_type: TYPE_FP16 dims: [ 2 ] }, { name: "b2" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name, file, content, config in (
        ("relu", "model.onnx", relu_bytes(), CONFIG),
        ("halves", "model.py", HALVES.encode(), HALVES_CONFIG),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / file).write_bytes(content)
        (repository / name / "config.pbtxt").write_text(config)
    with ServerProcess(repository) as server:
        yield server


@pytest.fixture
def asking(inference: ServerProcess, api: APIClient) -> APIClient:
    """A client of the REST API, whose bundled server is this one."""
    urls = {"http_url": f"http://{inference.http}", "grpc_url": inference.grpc, "metrics_url": f"http://{HOST}:1"}
    Server.objects.create(name="local", bundled=True, **urls)
    for name in ("relu", "halves"):
        Model.objects.create(name=name)
    return api


def keep(api: APIClient, name: str, wanted: list[float], model: str = "relu", **more: Any) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, -1, 2, -2]}
    y = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": wanted}
    given = {"name": name, "request": {"inputs": [x]}, "expected": {"outputs": [y]}, "golden": True, **more}
    answer = api.post(f"/api/v1/models/{model}/examples", given, format="json")
    assert answer.status_code == 201, answer.content


def run(api: APIClient, **asked: Any) -> Any:
    return api.post("/api/v1/models/relu/golden_checks", asked, format="json").json()


def test_a_run_says_which_passed_and_how_far_the_others_were_off(asking: APIClient) -> None:
    keep(asking, "a near one", [1, 0, 2.001, 0])
    keep(asking, "a wrong one", [1, 0, 2.5, 0])
    keep(asking, "no golden one", [9, 9, 9, 9], golden=False)
    answer = run(asking)
    near, wrong = answer["results"]
    assert not answer["passed"]
    assert (near["name"], near["passed"], near["version"]) == ("a near one", True, "1")
    assert near["outputs"][0]["largest"] == pytest.approx(0.001, rel=1e-3)
    assert not wrong["passed"]
    assert wrong["detail"].startswith("output 'y' is 2 at [0, 2], expected 2.5")
    assert wrong["outputs"][0]["largest"] == 0.5


def test_what_each_came_to_is_kept_until_it_asks_for_something_else(asking: APIClient) -> None:
    keep(asking, "near", [1, 0, 2.001, 0])
    run(asking)
    path = "/api/v1/models/relu/examples/near"
    kept = asking.get(path).json()["outcome"]
    assert (kept["passed"], kept["version"], kept["release"], kept["checked"]) == (True, "1", 0, False)
    assert kept["detail"] == "the largest difference is 0.001"
    asking.patch(path, {"name": "nearer"}, format="json")
    assert asking.get(f"{path}er").json()["outcome"] == kept
    asking.patch(f"{path}er", {"absolute": 1}, format="json")
    assert asking.get(f"{path}er").json()["outcome"] is None


def test_a_run_without_golden_requests_has_nothing_to_fail(asking: APIClient) -> None:
    assert run(asking) == {"passed": True, "results": []}


def test_what_the_server_refuses_has_failed_in_its_words(asking: APIClient) -> None:
    keep(asking, "good", [1, 0, 2, 0])
    (result,) = run(asking, version="7")["results"]
    assert not result["passed"]
    assert "7" in result["detail"]
    assert "relu" in result["detail"]


def test_a_server_that_is_gone_is_said_at_once(asking: APIClient) -> None:
    keep(asking, "good", [1, 0, 2, 0])
    Server.objects.update(http_url=f"http://{HOST}:1")
    answer = asking.post("/api/v1/models/relu/golden_checks", {}, format="json")
    assert answer.status_code == 503
    assert answer.json()["error"] == "inference server local does not answer: nothing listens at its address"


def test_the_present_answer_can_be_recorded_whatever_its_datatypes(asking: APIClient) -> None:
    inputs = [
        {"name": "h", "datatype": "FP16", "shape": [2], "data": [0.5, "NaN"]},
        {"name": "b", "datatype": "BYTES", "shape": [1], "base64": "BAAAAIlQTkc="},
    ]
    path = "/api/v1/models/halves/examples"
    asking.post(path, {"name": "png", "request": {"inputs": inputs}}, format="json")
    recorded = asking.post(f"{path}/png/answer", {}, format="json").json()
    assert recorded["version"] == "1"
    by_name = {row["name"]: row for row in recorded["outputs"]}
    assert by_name["h2"]["data"] == [0.25, "NaN"]
    assert by_name["b2"]["base64"] == "BAAAAIlQTkc="
    change = {"expected": json.loads(json.dumps(recorded)), "golden": True, "relative": 0}
    assert asking.patch(f"{path}/png", change, format="json").status_code == 200
    assert asking.post("/api/v1/models/halves/golden_checks", {}, format="json").json()["passed"]


def test_an_example_that_the_server_refuses_has_no_answer_to_record(asking: APIClient) -> None:
    keep(asking, "wide", [1, 0, 2, 0])
    answer = asking.post("/api/v1/models/relu/examples/wide/answer", {"version": "7"}, format="json")
    assert answer.status_code == 400
    assert "relu" in answer.json()["error"]


def test_one_that_was_kept_before_a_rule_came_fails_with_what_is_wrong_with_it(asking: APIClient) -> None:
    keep(asking, "good", [1, 0, 2, 0])
    example = Example.objects.get()
    Example.objects.update(request={**example.request, "parameters": {"priority": -1}})
    (result,) = run(asking)["results"]
    assert (result["passed"], "priority" in result["detail"]) == (False, True)
    assert golden_checks(example.model)[0]["request"]["parameters"] == {"priority": -1}
