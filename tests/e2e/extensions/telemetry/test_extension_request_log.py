"""The request log: the fields that it keeps of the stock clients' requests, and those that it never keeps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused, stream_of
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess, wait_until

SECRET = 4711.5
INPUTS = {"INPUT0": np.full((2, 1), SECRET, np.float32)}


class Setting(NamedTuple):
    server: ServerProcess
    path: Path

    def line(self, **expected: Any) -> dict[str, Any]:
        """The one line that has these values, once it is written."""

        def found() -> list[dict[str, Any]]:
            text = self.path.read_text() if self.path.exists() else ""
            lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            return [line for line in lines if expected.items() <= line.items()]

        (line,) = wait_until(found, what=f"a line with {expected}")
        return dict(line)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository = tmp_path_factory.mktemp("models")
    path = tmp_path_factory.mktemp("logs") / "requests.log"
    onnx_scale(repository)
    with ServerProcess(repository, f"--request-log={path}", "--request-log-client=hashed") as server:
        yield Setting(server, path)
        text = path.read_text()
        assert not [word for word in (str(SECRET), "bearer-of-the-key", "127.0.0.1", "INPUT0") if word in text]


@pytest.fixture(params=PROTOCOLS)
def client(setting: Setting, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(setting.server, request.param) as client:
        yield client


def test_a_request_leaves_a_line(setting: Setting, client: TritonClient) -> None:
    name = f"good-{client.protocol}"
    client.infer("scale", INPUTS, request_id=name, headers={"authorization": "bearer-of-the-key"})
    line = setting.line(id=name)
    expected = {
        "protocol": client.protocol,
        "model": "scale",
        "version": "1",
        "status": "OK",
        "rows": 2,
        "responses": 1,
    }
    assert expected.items() <= line.items()
    assert 0 <= line["queue_us"] + line["compute_us"] <= line["duration_us"]
    assert line["client"]


def test_a_refusal_leaves_its_code(setting: Setting, client: TritonClient) -> None:
    name = f"bad-{client.protocol}"
    refused(client, "NOT_FOUND", client.infer, "nope", INPUTS, request_id=name)
    assert setting.line(id=name)["status"] == "NOT_FOUND"


def test_each_request_of_a_stream_leaves_a_line(setting: Setting) -> None:
    with stream_of(setting.server) as stream:
        for name in ("stream-1", "stream-2"):
            stream.send("scale", INPUTS, request_id=name)
            stream.next()
            assert setting.line(id=name)["protocol"] == "grpc"
