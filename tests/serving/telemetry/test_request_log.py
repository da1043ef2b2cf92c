"""The request log: what a line says and does not say, sampling, a slow disk, rotation."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from serving.telemetry.request_log import Line, RequestLog
from tests.serving.in_process import core, infer
from tests.serving.requests import in_flight
from tests.serving.streaming_backend import streaming_model
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

SECRET = 12345678  # longer than what a moment's digits hold by chance


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    onnx_identity(tmp_path / "models")
    log = f"--request-log={tmp_path / 'requests.log'}"
    with ServerProcess(tmp_path / "models", log, "--request-log-client=hashed") as process:
        yield process


def ask(library: Any, address: str, model: str = "identity", **fields: Any) -> None:
    with library.InferenceServerClient(address) as client:
        wire = library.InferInput("INPUT0", [2, 1], "FP32")
        wire.set_data_from_numpy(np.full((2, 1), SECRET, np.float32))
        client.infer(model, [wire], **fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def waited_for(path: Path, count: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(lines(path)) >= count, what=f"{count} lines in the request log")
    return lines(path)


def test_a_line_tells_the_request_but_not_its_contents(server: ServerProcess, tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer very-secret"}
    ask(tritonclient.http, server.http, request_id="one", headers=headers)
    ask(tritonclient.grpc, server.grpc, request_id="two")
    first, second = waited_for(tmp_path / "requests.log", 2)
    assert (first["protocol"], second["protocol"]) == ("http", "grpc")
    assert (first["id"], second["id"]) == ("one", "two")
    for line in (first, second):
        expected = {"model": "identity", "version": "1", "status": "OK", "rows": 2, "batch_size": 2, "responses": 1}
        assert {key: line[key] for key in expected} == expected
        assert 0 <= line["queue_us"] + line["compute_us"] <= line["duration_us"]
        assert line["time"].endswith("Z")
    text = (tmp_path / "requests.log").read_text()
    assert not [word for word in (str(SECRET), "very-secret", "127.0.0.1", "INPUT0") if word in text]
    assert first["client"] == second["client"], "one address is one client"
    assert (tmp_path / "requests.log").stat().st_mode & 0o777 == 0o600


def test_a_refused_request_is_logged_with_its_code(server: ServerProcess, tmp_path: Path) -> None:
    for library, address in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        with pytest.raises(Exception, match="unknown"):
            ask(library, address, model="unknown")
    for line in waited_for(tmp_path / "requests.log", 2):
        assert (line["model"], line["status"], line["responses"]) == ("unknown", "NOT_FOUND", 0)
        assert line["compute_us"] is None


def test_after_sighup_the_log_goes_on_in_a_new_file(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    ask(tritonclient.http, server.http, request_id="before")
    waited_for(path, 1)
    path.rename(tmp_path / "old.log")
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)

    def written_anew() -> bool:
        ask(tritonclient.http, server.http, request_id="after")
        return path.exists() and bool(lines(path))

    wait_until(written_anew)
    assert {line["id"] for line in lines(path)} == {"after"}
    assert server.terminate() == 0
    assert lines(tmp_path / "old.log")[0]["id"] == "before"


def test_a_log_that_cannot_be_opened_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    onnx_identity(tmp_path / "models")
    server = ServerProcess(tmp_path / "models", f"--request-log={tmp_path}/missing/requests.log", wait="")
    try:
        assert server.start().process.wait(PATIENCE_S) == 1
        assert "cannot write the request log: No such file or directory" in server.log
    finally:
        server.close()


@pytest.mark.asyncio
async def test_a_sample_is_a_part_and_a_request_inside_the_server_is_not_logged(tmp_path: Path) -> None:
    onnx_identity(tmp_path / "models")
    path = tmp_path / "requests.log"
    inputs = {"INPUT0": np.ones((1, 1), np.float32)}
    log = {"request_log": str(path), "request_log_sample": 0.2}
    async with core(tmp_path / "models", load_model=("identity",), **log) as server:
        await infer(server, "identity", inputs)
        for _ in range(300):
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            request = in_flight("identity", inputs, lambda answer, final: answered.set_result(answer))  # noqa: B023
            server.infer(request, "http")
            await answered
    assert 20 < len(lines(path)) < 120


@pytest.mark.asyncio
async def test_a_decoupled_model_leaves_one_line_for_all_its_responses(tmp_path: Path) -> None:
    streaming_model(tmp_path / "models")
    path = tmp_path / "requests.log"
    async with core(tmp_path / "models", load_model=("streaming",), request_log=str(path)) as server:
        ended = asyncio.Event()
        inputs = {"IN": np.array([3], np.int32)}
        request = in_flight("streaming", inputs, lambda answer, final: ended.set() if final else None)
        server.infer(request, "grpc")
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
    assert [(line["status"], line["responses"]) for line in lines(path)] == [("OK", 3)]


def test_a_disk_that_does_not_follow_costs_lines_not_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = RequestLog(tmp_path / "pipe", max_waiting=100)
    try:
        for number in range(5000):
            log.write(Line(0, {"number": number, "fill": "x" * 100}))
        assert log.dropped > 1000
        os.set_blocking(reader, True)
        received = b""
        while b'"dropped"' not in received:
            received += os.read(reader, 1 << 20)
        last = json.loads(next(line for line in received.splitlines() if b'"dropped"' in line))
        assert 0 < last["dropped"] <= log.dropped
    finally:
        os.close(reader)
        log.close()
