"""What belongs to the whole server is the same whichever worker a client has: limits, clients' addresses, settings, ports."""

import contextlib
import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.workers.worker_processes import Answers, infer_request, one_each
from tests.support.model_factory import onnx_identity
from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

MB = 1 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "requests.jsonl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository)
    flags = (f"--request-memory-limit={8 * MB}", f"--request-log={log}", "--request-log-client=hashed")
    with ServerProcess(repository, "--frontend-workers=2", *flags) as server:
        yield server
        assert "Traceback" not in server.log


def test_the_memory_for_requests_is_one(server: ServerProcess) -> None:
    """What a client of one worker sends leaves less room for the clients of the other."""
    large = infer_request("identity", "large", 1.0, (1, MB // 2))
    assert 2 * MB < len(large) < 4 * MB

    def refusal() -> bytes | None:
        """Return what the second client is told; None where its body was there first, and perhaps the other refused."""
        first, second = one_each(server).values()
        with first, second, contextlib.suppress(ConnectionError):
            head = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {7 * MB}\r\n\r\n"
            first.sendall(head.encode() + b" " * (6 * MB))
            second.sendall(large)
            status, body = Answers(second).next()
            return body if status == 503 else None
        return None

    assert b"--request-memory-limit" in wait_until(refusal, what="a refusal")

    def is_answered() -> bool:
        (third, *others) = one_each(server).values()
        for one in others:
            one.close()
        with third:
            third.sendall(large)
            return Answers(third).next()[0] == 200

    wait_until(is_answered, what="the memory of the clients that have gone")


def test_the_request_log_knows_clients_by_their_address_alone(server: ServerProcess, log: Path) -> None:
    """Requests that a worker decodes and those that it passes on tell the same client, whatever that says of itself."""
    data = b"\0" * 8
    raw = (
        "POST /v2/models/identity/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: 0\r\n"
        f"X-Forwarded-For: 10.0.0.1\r\nX-Slipway-Peer: 10.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode() + data
    host, _, port = server.http.rpartition(":")
    for source in ("127.0.0.1", "127.0.0.2"):
        with socket.create_connection((host, int(port)), PATIENCE_S, source_address=(source, 0)) as client:
            answers = Answers(client)
            for request in (infer_request("identity", source), raw):
                client.sendall(request)
                assert answers.next()[0] == 200

    def lines() -> list[dict[str, str]]:
        """The whole lines from the first of these requests on."""
        found = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return list(itertools.dropwhile(lambda line: line["id"] != "127.0.0.1", found))

    clients = [line["client"] for line in wait_until(lambda: lines() if len(lines()) == 4 else None, what="four lines")]
    assert clients[0] == clients[1] != clients[2] == clients[3]


def test_log_settings_reach_the_workers_and_stay_the_servers(server: ServerProcess) -> None:
    for client in one_each(server).values():
        client.close()
    assert server.post("/v2/logging", {"log_verbose_level": 1})[1]["log_verbose_level"] == 1
    for _ in range(4):
        assert server.get("/v2/logging")[1]["log_verbose_level"] == 1
    server.post("/v2/logging", {"log_verbose_level": 0})


def test_a_port_of_another_program_is_refused_as_without_workers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ServerProcess(tmp_path, "--frontend-workers=2", f"--http-port={port}", wait="") as server:
            assert server.process is not None
            assert server.process.wait(PATIENCE_S) == 1
            assert f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use" in server.log


def test_servers_with_workers_share_ports_only_where_both_say_so(tmp_path: Path) -> None:
    ports = (f"--http-port={free_port()}", f"--grpc-port={free_port()}", "--frontend-workers=2")
    with ServerProcess(tmp_path, "--reuse-http-port=true", "--reuse-grpc-port=true", *ports) as first:
        with ServerProcess(tmp_path, *ports, wait="") as second:
            assert second.process is not None
            assert second.process.wait(PATIENCE_S) == 1
            assert "already in use" in second.log
        assert httpx.get(f"{first.http_url}/v2/health/ready", timeout=PATIENCE_S).status_code == 200
