"""Requests that find no version of their model serving: no version counts them, so the server does."""

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess

BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", 3.0)
    wanted = repository.parent / "wanted.json"
    wanted.write_text('["coming"]')
    with ServerProcess(repository, "--model-control-mode=explicit", f"--wanted-models-file={wanted}") as server:
        yield server


def counted(server: ServerProcess, model: str) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    found = [one for one in samples if one.name.startswith("slipway_unserved_request_count")]
    return sum(one.value for one in found if one.labels["model"] == model)


def infer(server: ServerProcess, path: str) -> int:
    return server.post(f"/v2/models/{path}/infer", BODY)[0]


def test_a_model_that_is_unloaded_counts_what_it_refuses(server: ServerProcess) -> None:
    assert server.post("/v2/repository/models/scale/load")[0] == 200
    assert infer(server, "scale") == 200
    assert counted(server, "scale") == 0
    assert server.post("/v2/repository/models/scale/unload")[0] == 200
    assert infer(server, "scale") >= 400
    assert infer(server, "scale/versions/1") >= 400
    assert server.post("/v2/models/scale/generate", {"INPUT0": 1.0})[0] >= 400
    assert counted(server, "scale") == 3


def test_a_model_that_will_be_loaded_counts_requests_that_come_too_early(server: ServerProcess) -> None:
    assert infer(server, "coming") == 503
    assert counted(server, "coming") == 1


def test_names_that_clients_make_up_are_not_counted(server: ServerProcess) -> None:
    assert infer(server, "nowhere") in (400, 404)
    assert counted(server, "nowhere") == 0
