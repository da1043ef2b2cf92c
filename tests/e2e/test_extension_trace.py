"""The trace extension with the stock clients: settings of the server and of models, and the files that are written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.extension_clients import PROTOCOLS, client_of, refused
from tests.e2e.tritonclient_adapter import TritonClient
from tests.model_factory import onnx_scale
from tests.serving_process import ServerProcess, wait_until

X = {"INPUT0": np.array([[2]], np.float32)}
CLEARED: dict[str, Any] = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def server(tmp_path: Path, traces: Path) -> Iterator[ServerProcess]:
    for name in ("scale", "other"):
        onnx_scale(tmp_path / "models", name, 3.0)
    with ServerProcess(tmp_path / "models", f"--trace-config=triton,file={traces}") as server:
        yield server


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(server, request.param) as client:
        yield client


def plain(client: TritonClient, found: Any) -> dict[str, Any]:
    if client.protocol == "http":
        return {name: value if isinstance(value, list) else [value] for name, value in found.items()}
    return {name: list(row.value) for name, row in found.settings.items()}


def update(client: TritonClient, model: str | None = None, **settings: Any) -> dict[str, Any]:
    return plain(client, client.call("update_trace_settings", model_name=model, settings=settings))


def phases(path: Path) -> dict[int, dict[str, int]]:
    """id -> name of each moment -> ns; written whole by a thread of the server."""
    rows = json.loads(wait_until(lambda: path.exists() and path.read_text(), what=f"{path.name}"))
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        for stamp in row.get("timestamps", []):
            found.setdefault(row["id"], {})[stamp["name"]] = stamp["ns"]
    return found


def test_settings_of_models_follow_the_server_until_they_are_their_own(client: TritonClient, traces: Path) -> None:
    start = plain(client, client.call("get_trace_settings"))
    assert start == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [str(traces)],
        "trace_mode": ["triton"],
    }
    own = update(client, "scale", trace_level=["TIMESTAMPS"], trace_rate="5")
    assert own == start | {"trace_level": ["TIMESTAMPS"], "trace_rate": ["5"]}
    assert plain(client, client.call("get_trace_settings")) == start
    update(client, trace_rate="7", log_frequency="9")
    assert plain(client, client.call("get_trace_settings", model_name="scale")) == own | {"log_frequency": ["9"]}
    assert update(client, "scale", trace_rate=None)["trace_rate"] == ["7"]
    assert update(client, **CLEARED) == start


def test_traces_say_when_each_phase_began(client: TritonClient, traces: Path) -> None:
    update(client, trace_level=["TIMESTAMPS"], trace_rate="2", trace_count="3", log_frequency="2")
    for number in range(10):
        client.infer("scale", X, request_id=f"r{number}")
    assert plain(client, client.call("get_trace_settings"))["trace_count"] == ["0"]
    first, second = (phases(traces.with_name(f"trace.json.{number}")) for number in (0, 1))
    assert (len(first), len(second)) == (2, 1)
    heads = [row for row in json.loads(traces.with_name("trace.json.0").read_text()) if "model_name" in row]
    assert [(row["model_name"], row["model_version"], row["request_id"]) for row in heads] == [
        ("scale", 1, "r1"),
        ("scale", 1, "r3"),
    ]
    received, sending = ("HTTP_RECV_END", "HTTP_SEND_START")
    if client.protocol == "grpc":
        received, sending = ("GRPC_WAITREAD_END", "GRPC_SEND_START")
    order = [
        received,
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
        sending,
    ]
    for moments in first.values():
        assert list(moments) == order
        assert list(moments.values()) == sorted(moments.values())


def test_one_models_requests_alone_may_be_traced(client: TritonClient, server: ServerProcess, traces: Path) -> None:
    update(client, "other", trace_level=["TIMESTAMPS"], trace_rate="1")
    for name in ("scale", "other", "scale", "other"):
        client.infer(name, X)
    assert not traces.exists()
    server.terminate()
    rows = json.loads(traces.read_text())
    assert [row["model_name"] for row in rows if "model_name" in row] == ["other", "other"]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"trace_file": "/tmp/x"}, "UNSUPPORTED", "trace file location"),
        ({"trace_level": ["TIMESTAMPS"], "trace_rate": "often"}, "INVALID_ARG", "trace_rate"),
        ({"trace_count": "-2"}, "INVALID_ARG", "trace_count"),
        ({"trace_level": ["LOUD"]}, "INVALID_ARG", "LOUD"),
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, "INVALID_ARG", "OFF"),
        ({"trace_level": ["TENSORS"]}, "UNSUPPORTED", "TENSORS"),
        ({"trace_colour": "red"}, "INVALID_ARG", "trace_colour"),
    ],
)
def test_a_wrong_change_changes_nothing(client: TritonClient, settings: dict[str, Any], code: str, said: str) -> None:
    before = plain(client, client.call("get_trace_settings"))
    assert said in refused(client, code, client.call, "update_trace_settings", settings=settings)
    assert plain(client, client.call("get_trace_settings")) == before


def test_an_unknown_model_has_no_settings(client: TritonClient) -> None:
    assert "nope" in refused(client, "NOT_FOUND", client.call, "get_trace_settings", model_name="nope")
