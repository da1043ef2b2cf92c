"""gRPC through workers: calls that the core answers, requests whose tensors it has, deadlines, and what ends with a worker."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import shared_memory

from tests.e2e.gated_model import GatedModel
from tests.e2e.workers.worker_processes import owner, worker_pids
from tests.serving.frontends.http2.http2_peer import (
    DATA,
    END_HEADERS,
    HEADERS,
    Answer,
    Peer,
    frame,
    framed,
    window_update,
)
from tests.serving.frontends.raw_http import samples
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

DEADLINE_EXCEEDED, NOT_FOUND = 4, 5
PENDING = 'nv_inference_pending_request_count{model="gated",version="1"}'


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> GatedModel:
    folder = tmp_path_factory.mktemp("gated")
    return GatedModel(folder / "models", folder, extra="instance_group { count: 1 kind: KIND_CPU }")


@pytest.fixture(scope="module")
def server(gated: GatedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository, "identity", "UINT8")
    flags = ("--frontend-workers=2", "--allow-client-shm=true")
    with ServerProcess([repository, gated.repository], *flags) as running:
        yield running
        assert "Traceback" not in running.log


def identity(size: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="identity")
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, size])
    return request


def ask_gated(identifier: str) -> bytes:
    request = pb.ModelInferRequest(model_name="gated", id=identifier, raw_input_contents=[np.float32(1).tobytes()])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    return framed(request.SerializeToString())


def open_stream(peer: Peer, identifier: str) -> None:
    peer.open(1, "ModelStreamInfer")
    peer.data(1, ask_gated(identifier), end=False)


def peer_of(server: ServerProcess, worker: int) -> Peer:
    """A connection to this worker."""
    while True:
        peer = Peer(server.grpc)
        if owner(server, peer.socket) == worker:
            return peer
        peer.socket.close()


def placed(answer: Answer) -> pb.ModelInferResponse:
    assert answer.status == 0, answer.headers
    return pb.ModelInferResponse.FromString(answer.message)


def test_a_large_message_whose_output_lies_in_shared_memory_goes_to_the_core_whole(server: ServerProcess) -> None:
    """24 MB beside the region: more than one process takes of a stream before the other has read."""
    size = 24 << 20
    values = (np.arange(size) % 251).astype(np.uint8)
    region = shared_memory.create_shared_memory_region("placed", "/slipway-test-grpc-workers", size)
    try:
        with Peer(server.grpc) as peer:
            register = pb.SystemSharedMemoryRegisterRequest(
                name="placed", key="/slipway-test-grpc-workers", byte_size=size
            )
            assert peer.call(1, "SystemSharedMemoryRegister", register).status == 0
            request = identity(size)
            output = request.outputs.add(name="OUTPUT0")
            output.parameters["shared_memory_region"].string_param = "placed"
            output.parameters["shared_memory_byte_size"].int64_param = size
            request.raw_input_contents.append(values.tobytes())
            peer.send(window_update(0, 1 << 30))
            answer = placed(peer.call(3, "ModelInfer", request, grpc_timeout="50S"))
            assert answer.outputs[0].parameters["shared_memory_region"].string_param == "placed"
            assert (shared_memory.get_contents_as_numpy(region, np.uint8, [size]) == values).all()
            assert peer.call(5, "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest()).status == 0
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_an_unknown_region_is_told_by_the_core(server: ServerProcess) -> None:
    request = identity(4)
    request.inputs[0].parameters["shared_memory_region"].string_param = "nowhere"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    with Peer(server.grpc) as peer:
        answer = peer.call(1, "ModelInfer", request)
        assert (answer.status, "nowhere" in answer.headers["grpc-message"]) == (NOT_FOUND, True)
        assert peer.is_served(3)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_deadline_that_passes_gives_the_request_up_in_the_core(
    server: ServerProcess, gated: GatedModel, method: str
) -> None:
    gated.shut()
    with Peer(server.grpc) as holder, Peer(server.grpc) as peer:
        open_stream(holder, f"holds {method}")
        gated.wait_for(f"holds {method}")
        peer.open(1, method, grpc_timeout="300m")
        for number in range(8):  # more than the model's process is sent ahead
            peer.data(1, ask_gated(f"late {method} {number}"), end=method == "ModelInfer")
            if method == "ModelInfer":
                break
        assert peer.answer(1).status == DEADLINE_EXCEEDED
        assert peer.is_served(3)
        gated.open()
        assert holder.next(DATA, 1)
    wait_until(lambda: samples(server)[PENDING] == 0, what="the end of what nobody waits for")
    assert f"late {method} 7" not in gated.began()


def test_a_client_that_comes_and_goes_leaves_no_descriptor_open(server: ServerProcess) -> None:
    def come_and_go() -> None:
        with Peer(server.grpc) as peer:
            assert peer.is_served(1)

    come_and_go()
    before = server.descriptors()
    for _ in range(30):
        come_and_go()
    wait_until(lambda: server.descriptors() <= before + 4, what="the end of all")


def test_a_stream_ends_with_its_worker_and_those_of_the_other_go_on(server: ServerProcess, gated: GatedModel) -> None:
    gated.shut()
    victim, other = sorted(worker_pids(server))
    with peer_of(server, victim) as its, peer_of(server, other) as others:
        open_stream(others, "others")
        gated.wait_for("others")
        its.open(1, "ModelStreamInfer")
        for number in range(8):
            its.data(1, ask_gated(f"its {number}"), end=False)
        wait_until(lambda: samples(server)[PENDING] >= 8 - 4, what="requests in the queue")
        os.kill(victim, signal.SIGKILL)
        while its.frame() is not None:
            pass
        wait_until(lambda: samples(server)[PENDING] == 0, what="the end of what nobody waits for")
        gated.open()
        assert others.next(DATA, 1)
        others.data(1, b"")
        assert others.answer(1).status == 0
    wait_until(lambda: len(worker_pids(server)) == 2, what="another worker")
    assert "its 7" not in gated.began()


def test_a_shutdown_ends_watches_and_answers_what_is_under_way(tmp_path: Path) -> None:
    gated = GatedModel(tmp_path / "models", tmp_path)
    with ServerProcess(gated.repository, "--frontend-workers=2") as server:
        with Peer(server.grpc) as watcher, Peer(server.grpc) as asker, Peer(server.grpc) as streaming:
            watcher.send(frame(HEADERS, END_HEADERS, 1, watcher.block("/grpc.health.v1.Health/Watch")))
            watcher.data(1, framed(b""))
            watcher.next(DATA, 1)
            asker.open(1, "ModelInfer")
            asker.data(1, ask_gated("asked"))
            gated.wait_for("asked")  # before the other comes, by another worker: one instance takes them in turn
            open_stream(streaming, "streamed")
            wait_until(lambda: samples(server)[PENDING] == 1, what="the other in the queue")
            os.kill(server.pid, signal.SIGTERM)
            assert watcher.answer(1).status == 14  # UNAVAILABLE
            gated.open()
            assert asker.answer(1).status == 0
            streaming.data(1, b"")
            assert streaming.answer(1).status == 0
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.log
