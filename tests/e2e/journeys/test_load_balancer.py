"""A rolling restart behind a load balancer loses no request: not ready first, then closed with notice."""

import contextlib
import http.client
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc

from tests.serving.frontends.http2 import http2_peer as h2
from tests.serving.frontends.http2.http2_peer import Peer
from tests.serving.frontends.raw_http import samples
from tests.support.model_factory import onnx_scale
from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
BODY = '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}'


@contextlib.contextmanager
def balancer(folder: Path, ports: list[int]) -> Iterator[int]:
    """The port of a haproxy that asks each server five times a second whether it is ready."""
    port = free_port()
    servers = "\n".join(f"  server s{one} 127.0.0.1:{one} check inter 200ms fall 2 rise 2" for one in ports)
    (folder / "haproxy.cfg").write_text(
        f"""
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout check 60s
frontend clients
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  option httpchk GET /v2/health/ready
{servers}
"""
    )
    assert HAPROXY is not None
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


class Clients:
    """Some keep their connection, and others open one for each request."""

    def __init__(self, port: int, count: int = 6) -> None:
        self._port = port
        self._stop = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask_on, args=(number % 2 == 0,)) for number in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask_on(self, keeps: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        while not self._stop.is_set():
            try:
                connection.request("POST", "/v2/models/scale/infer", BODY)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    self.answered += 1
                else:
                    self.failures.append(f"{answer.status}: {content[:200]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            if not keeps:
                connection.close()
        connection.close()


def is_balanced(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:  # it does not listen yet
            return False


def is_used(server: ServerProcess) -> bool:
    return samples(server).get('nv_inference_request_success{model="scale",version="1"}', 0) > 0


@pytest.mark.long
@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_rolling_restart_behind_haproxy_loses_no_request(tmp_path: Path, workers: int) -> None:
    repository = tmp_path / "models"
    onnx_scale(repository)
    ports = [free_port(), free_port()]
    flags = (f"--frontend-workers={workers}", "--behind-load-balancer=true", "--drain-secs=3")

    def started(port: int) -> ServerProcess:
        return ServerProcess(repository, *flags, f"--http-port={port}", "--reuse-http-port=true")

    with contextlib.ExitStack() as stack:
        servers = {port: stack.enter_context(started(port)) for port in ports}
        public = stack.enter_context(balancer(tmp_path, ports))
        wait_until(lambda: is_balanced(public), what="the balancer's first answer")
        with Clients(public) as clients:
            for port in ports:
                before = clients.answered
                assert servers[port].terminate() == 0
                assert clients.answered > before
                servers[port] = stack.enter_context(started(port))
                wait_until(lambda port=port: is_used(servers[port]), what="the balancer's taking it back")
            wait_until(lambda: clients.answered > 1000, what="answers")
        assert clients.failures == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_is_told_to_end_is_not_ready_and_serves_new_connections_first(
    tmp_path: Path, workers: int
) -> None:
    onnx_scale(tmp_path)
    with (
        ServerProcess(tmp_path, f"--frontend-workers={workers}", "--drain-secs=8") as server,
        Peer(server.grpc) as peer,
    ):
        assert peer.is_served(1)
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/v2/health/ready")[0] != 200, what="its being not ready")
        assert server.get("/v2/health/live")[0] == 200
        status, answer = server.request("POST", "/v2/models/scale/infer", BODY)
        assert status == 200, answer
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
        assert peer.is_served(3)
        assert peer.next(h2.GOAWAY).code == 0
        assert server.process.wait(PATIENCE_S) == 0


def test_a_server_alone_ends_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert server.terminate() == 0
        assert "--drain-secs" not in server.log
