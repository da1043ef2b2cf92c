"""A worker that dies or stops takes its own connections with it, and nothing else; no worker outlives its server."""

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.gated_model import GatedModel
from tests.e2e.workers.worker_processes import Answers, connect, infer_request, one_each, owner, worker_pids
from tests.serving.frontends.http2.http2_peer import Peer
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until


class Setting:
    """A server with two workers, an open model and a gated one, which executes two requests at a time."""

    def __init__(self, folder: Path, *flags: str) -> None:
        repository = folder / "models"
        self.gated = GatedModel(repository, folder, extra="instance_group { count: 2 kind: KIND_CPU }")
        onnx_scale(repository)
        self.server = ServerProcess(repository, "--frontend-workers=2", *flags)

    def pending(self) -> int:
        with urllib.request.urlopen(self.server.metrics_url, timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            int(float(line.split()[-1])) for line in lines if line.startswith("nv_inference_pending_request_count{")
        )

    def shared_memories(self) -> int:
        """How many the core has mapped: two for each worker."""
        maps = Path(f"/proc/{self.server.pid}/maps").read_text()
        return sum("memfd:slipway-worker " in line for line in maps.splitlines())

    def is_answered(self, client: socket.socket) -> bool:
        client.sendall(infer_request("scale"))
        return Answers(client).next()[0] == 200


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    with made.server:
        yield made


def test_a_worker_that_dies_fails_its_own_connections_alone_and_is_started_again(setting: Setting) -> None:
    server, gated = setting.server, setting.gated
    (victim, its), (other, others) = one_each(server).items()
    with its, others:
        its.sendall(infer_request("gated", "its"))
        others.sendall(infer_request("gated", "others", 2.0))
        gated.wait_for("its", "others")
        # More than may be sent to the model's processes ahead.
        its.sendall(b"".join(infer_request("gated", f"queued-{number}") for number in range(8)))
        wait_until(setting.pending, what="requests in the queue")
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            Answers(its).next()
        wait_until(lambda: setting.pending() == 0, what="their leaving the queue")
        gated.open()
        assert Answers(others).next()[0] == 200
        wait_until(lambda: len(worker_pids(server)) == 2, what="the worker's being started again")
        assert other in worker_pids(server)
        wait_until(lambda: setting.shared_memories() == 4, what="the end of the shared memory of the dead worker")
        assert setting.is_answered(others)
    assert "queued-7" not in gated.began()
    for client in one_each(server).values():
        with client:
            assert setting.is_answered(client)
    wait_until(lambda: "was ended by signal 9; it is restarted in" in server.log, what="the log")
    assert "frontend worker" in server.log


def test_a_client_that_goes_takes_its_requests_out_of_the_queue(setting: Setting) -> None:
    with connect(setting.server) as client:
        client.sendall(b"".join(infer_request("gated", f"{number}") for number in range(12)))
        wait_until(setting.pending, what="requests in the queue")
    wait_until(lambda: not setting.pending(), what="their leaving the queue")
    setting.gated.open()
    with connect(setting.server) as client:
        assert setting.is_answered(client)
    assert "11" not in setting.gated.began()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Setting]:
    """With workers that are killed after 3 s without a sign of life."""
    made = Setting(tmp_path, "--process-heartbeat-timeout-secs=3")
    with made.server:
        yield made


def test_a_stopped_worker_is_replaced_and_clients_that_came_meanwhile_are_answered(impatient: Setting) -> None:
    setting = impatient
    clients = one_each(setting.server)
    (victim, its), (_, others) = clients.items()
    os.kill(victim, signal.SIGSTOP)
    with its, others:
        its.sendall(infer_request("scale"))
        assert setting.is_answered(others)
        waiting = [connect(setting.server) for _ in range(8)]
        for client in waiting:
            client.sendall(infer_request("scale"))
        for client in waiting:
            with client:
                assert Answers(client).next()[0] == 200
        wait_until(lambda: victim not in worker_pids(setting.server), what="the end of the stopped worker")
        with pytest.raises(ConnectionError):
            Answers(its).next()
        assert setting.is_answered(others)
    wait_until(lambda: "gave no sign of life for 3 s and was killed" in setting.server.log, what="the log")


def test_nobody_else_notices_a_worker_that_is_stopped(tmp_path: Path) -> None:
    """Connections over both protocols are taken by the others within moments, long before the worker is replaced."""
    onnx_scale(tmp_path)
    with ServerProcess(tmp_path, "--frontend-workers=2") as server:
        core = server.pid
        # On a full machine even moments may outlast the worker.
        assert any(_answered_while_stopped(server) for _ in range(5))
        assert server.pid == core


def _answered_while_stopped(server: ServerProcess) -> bool:
    """Stop a worker, to which the kernel gives every second client. Whether all are answered before it is replaced."""
    for client in one_each(server).values():
        with client:
            client.sendall(infer_request("scale"))
            assert Answers(client).next()[0] == 200
    victim, other = worker_pids(server)
    os.kill(victim, signal.SIGSTOP)
    for _ in range(10):
        with connect(server) as client, Peer(server.grpc) as peer:
            client.sendall(infer_request("scale"))
            assert Answers(client).next()[0] == 200
            assert peer.is_served(1)
            assert owner(server, client) != victim
    meanwhile = victim in worker_pids(server)
    wait_until(lambda: len(worker_pids(server)) == 2 and victim not in worker_pids(server), what="its replacement")
    assert other in worker_pids(server)
    for client in one_each(server).values():
        with client:
            client.sendall(infer_request("scale"))
            assert Answers(client).next()[0] == 200
    return meanwhile


def test_a_worker_that_goes_on_accepts_again(setting: Setting) -> None:
    victim, other = worker_pids(setting.server)
    os.kill(victim, signal.SIGSTOP)
    try:
        for _ in range(8):
            with connect(setting.server) as client:
                assert owner(setting.server, client) == other
    finally:
        os.kill(victim, signal.SIGCONT)
    for client in one_each(setting.server).values():
        with client:
            assert setting.is_answered(client)


def test_workers_end_with_the_core(setting: Setting) -> None:
    pids = worker_pids(setting.server)
    setting.server.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), what="the end of the workers")
