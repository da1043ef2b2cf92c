"""The logging extension with the stock clients: settings change what the running server writes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", 3.0)
    with ServerProcess(repository, "--model-control-mode=explicit", "--exit-on-error=false") as server:
        yield server


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(server, request.param) as client:
        yield client
        client.call("update_log_settings", {name: value for name, value in DEFAULTS.items() if name != "log_file"})


def plain(client: TritonClient, found: Any) -> dict[str, Any]:
    if client.protocol == "http":
        return dict(found)
    return {name: getattr(row, row.WhichOneof("parameter_choice")) for name, row in found.settings.items()}


def test_the_settings_are_shown(client: TritonClient) -> None:
    assert plain(client, client.call("get_log_settings")) == DEFAULTS


def test_a_change_counts_at_once_and_what_is_not_named_stays(client: TritonClient, server: ServerProcess) -> None:
    changed = {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
    assert plain(client, client.call("update_log_settings", changed)) == DEFAULTS | changed
    start = len(server.log)
    client.call("load_model", "scale")
    client.call("unload_model", "scale")
    assert " INFO " not in server.log[start:]
    client.call("update_log_settings", {"log_info": True})
    client.call("load_model", "scale")
    lines = [line for line in server.log[start:].splitlines() if " INFO " in line]
    assert "loaded 'scale'" in lines[-1]
    assert lines[-1].split()[0].endswith("Z")
    client.call("unload_model", "scale")


def test_each_line_may_be_an_object_that_names_its_model(client: TritonClient, server: ServerProcess) -> None:
    client.call("update_log_settings", {"log_format": "json"})
    start = len(server.log)
    client.call("load_model", "scale")
    client.call("unload_model", "scale")
    lines = [json.loads(line) for line in server.log[start:].splitlines()]
    (loaded,) = [line for line in lines if line["message"].startswith("loaded 'scale'")]
    assert loaded["process"] == "server"
    assert loaded["level"] == "INFO"
    assert loaded["model"] == "scale"


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"log_file": "/tmp/x"}, "UNSUPPORTED", "log file location"),
        ({"log_info": False, "log_format": "XML"}, "UNAVAILABLE", "XML"),
        ({"log_colour": True}, "INVALID_ARG", "log_colour"),
    ],
)
def test_a_wrong_change_changes_nothing(client: TritonClient, settings: dict[str, Any], code: str, said: str) -> None:
    assert said in refused(client, code, client.call, "update_log_settings", settings)
    assert plain(client, client.call("get_log_settings")) == DEFAULTS


@pytest.mark.parametrize("body", [{"log_info": 1}, {"log_verbose_level": "much"}, {"log_verbose_level": -1}, []])
def test_a_wrong_value_is_told_over_http(server: ServerProcess, body: Any) -> None:
    status, answer = server.post("/v2/logging", body)
    assert status == 400
    assert answer["error"]
