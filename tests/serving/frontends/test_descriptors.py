"""Descriptors run short: the idlest connections make room, and a new client is answered."""

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tritonclient.http

from tests.serving.frontends.http2.http2_peer import Peer, framed
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess, wait_until

pytestmark = pytest.mark.long
DESCRIPTORS, IDLE = 256, 900


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "workers"])
def short(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may have few descriptors, and so may each of its workers; this process may have many."""
    repository = tmp_path_factory.mktemp("descriptors")
    onnx_scale(repository)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        with ServerProcess(repository, f"--frontend-workers={request.param}") as server:
            for pid in server.pids:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            yield server
            assert "Traceback" not in server.log
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def waiting(address: str) -> int:
    """How many connections wait in the kernel to be accepted."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(port) and row[3] == "0A")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_liveness_is_answered_with_hundreds_of_idle_connections(short: ServerProcess, protocol: str) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(IDLE):
            idle.enter_context(connect(getattr(short, protocol)))
        wait_until(lambda: not waiting(getattr(short, protocol)), what="their being accepted")
        if protocol == "http":
            for _ in range(IDLE):  # through a worker each has a connection to the core then
                asked = idle.enter_context(connect(short.http))
                asked.sendall(b"GET /v2 HTTP/1.1\r\nHost: test\r\n\r\n")
                assert asked.recv(12) == b"HTTP/1.1 200"
        is_live(short)
    assert short.get("/v2/health/ready")[0] == 200
    assert all(len(os.listdir(f"/proc/{pid}/fd")) < DESCRIPTORS for pid in short.pids)


def is_live(server: ServerProcess) -> None:
    for _ in range(5):
        assert server.get("/v2/health/live")[0] == 200
        with Peer(server.grpc) as peer:
            assert peer.is_served(1)


def silent(peer: Peer) -> None:
    """Open a stream and ask nothing."""
    peer.open(1, "ModelStreamInfer")


def unfinished(peer: Peer) -> None:
    peer.open(1, "ModelInfer")


def unread(peer: Peer) -> None:
    """Take nothing of an answer."""
    peer.open(1, "ServerMetadata")
    peer.data(1, framed(b""))


@pytest.mark.parametrize("call", [silent, unfinished, unread])
def test_liveness_is_answered_with_hundreds_of_calls_that_wait_for_their_clients(
    short: ServerProcess, call: Callable[[Peer], None]
) -> None:
    with contextlib.ExitStack() as calls:
        for _ in range(IDLE // 2):
            with contextlib.suppress(OSError):  # it made room for others already
                call(calls.enter_context(Peer(short.grpc, initial_window_size=0)))
        wait_until(lambda: not waiting(short.grpc), what="their being accepted")
        is_live(short)


def test_one_shared_memory_object_costs_one_descriptor_however_often_it_is_registered(tmp_path: Path) -> None:
    name = f"slipway-test-{os.getpid()}"
    path = Path("/dev/shm", name)
    path.write_bytes(bytes(4096))
    try:
        flags = ("--allow-client-shm=true", "--frontend-workers=0")
        with ServerProcess(tmp_path, *flags) as server, tritonclient.http.InferenceServerClient(server.http) as client:
            before = server.descriptors()
            for number in range(300):
                client.register_system_shared_memory(f"region-{number}", f"/{name}", 64, offset=number)
            wait_until(lambda: server.descriptors() - before <= 2, what="no descriptor for each region")
            client.unregister_system_shared_memory()
            wait_until(lambda: server.descriptors() <= before + 1, what="the end of the regions")
            registering = "/v2/systemsharedmemory/region/more{}/register"
            body = {"key": f"/{name}", "offset": 0, "byte_size": 64}
            answers = [server.post(registering.format(number), body) for number in range(4097)]
            assert [status for status, _ in answers].count(200) == 4096
            assert "shared memory regions, its limit: unregister some" in answers[-1][1]["error"]
    finally:
        path.unlink()


def test_objects_without_end_are_refused_and_closed_ones_make_room(tmp_path: Path) -> None:
    paths = [Path("/dev/shm", f"slipway-test-{os.getpid()}-{number}") for number in range(80)]
    for path in paths:
        path.write_bytes(bytes(64))
    try:
        with ServerProcess(tmp_path, "--allow-client-shm=true", "--frontend-workers=0") as server:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            with tritonclient.http.InferenceServerClient(server.http) as client:
                answers = [
                    server.post(
                        f"/v2/systemsharedmemory/region/{path.name}/register",
                        {"key": f"/{path.name}", "offset": 0, "byte_size": 64},
                    )
                    for path in paths
                ]
                assert [status for status, _ in answers].count(200) == DESCRIPTORS // 4
                assert "unregister some" in answers[-1][1]["error"]
                client.unregister_system_shared_memory()
                client.register_system_shared_memory("again", f"/{paths[-1].name}", 64)
    finally:
        for path in paths:
            path.unlink()
