"""Models whose names an address cannot hold as they are: loaded, asked, counted and unloaded by the stock clients."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.extensions.clients import PROTOCOLS, client_of
from tests.support.model_factory import ODD_NAMES, onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess

ONE = {"INPUT0": np.ones((1, 1), np.float32)}


def odd_model(repository: Path, name: str) -> Path:
    """Its configuration leaves the name to the folder."""
    config = onnx_scale(repository, "plain", 2.0).rename(repository / name) / "config.pbtxt"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if not line.startswith("name:")))
    return config.parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """In mode none, which loads everything at start; a folder that cannot be a model does not stop it."""
    repository = tmp_path_factory.mktemp("models")
    for name in ODD_NAMES:
        odd_model(repository, name)
    (repository / "line\nend").mkdir()
    with ServerProcess(repository, f"--trace-config=triton,file={repository.parent / 'trace'}") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_every_route_takes_any_name_of_a_folder(server: ServerProcess, kind: str) -> None:
    with client_of(server, kind) as client:
        for name in ODD_NAMES:
            assert client.call("is_model_ready", name)
            assert client.infer(name, ONE).outputs["OUTPUT0"].item() == 2.0
            assert client.described("get_model_metadata", name)["name"] == name
            assert client.described("get_model_config", name)["name"] == name
            assert client.described("get_inference_statistics", name)["model_stats"][0]["name"] == name
            assert client.call("get_trace_settings", name)
        assert {row["name"] for row in client.described("get_model_repository_index")} == set(ODD_NAMES)


def test_metrics_tell_the_names_apart(server: ServerProcess) -> None:
    text = httpx.get(server.metrics_url, timeout=PATIENCE_S).text
    found = {
        sample.labels["model"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "nv_inference_count_total" or sample.name == "nv_inference_count"
    }
    assert found == set(ODD_NAMES)


def test_a_folder_that_cannot_be_a_model_is_passed_over_and_said(server: ServerProcess) -> None:
    assert r"folder 'line\nend' is passed over: a model name has no control characters" in server.log


def test_odd_names_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    for name in ODD_NAMES:
        odd_model(tmp_path, name)
    flags = ("--model-control-mode=explicit", f"--load-model={ODD_NAMES[0]}")
    with ServerProcess(tmp_path, *flags) as server:
        for number, name in enumerate(ODD_NAMES):
            with client_of(server, PROTOCOLS[number % 2]) as client:
                client.call("load_model", name)
                assert client.call("is_model_ready", name)
                client.call("unload_model", name)
                assert not client.call("is_model_ready", name)
        for path in ("..", "%2E%2E", "..%2Fplain", "a%00b", "a%0Ab", "%FF"):
            status, body = server.post(f"/v2/repository/models/{path}/load")
            assert status in (400, 404), (path, body)
