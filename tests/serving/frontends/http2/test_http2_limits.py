"""A hostile or broken peer costs little: floods end its connection, memory stays bounded, others are unaffected."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import hpack
import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.e2e.gated_model import GatedModel
from tests.serving.frontends.http2 import http2_peer as h2
from tests.serving.frontends.http2.http2_peer import Peer, frame, framed
from tests.serving.frontends.raw_http import samples
from tests.support.frontend_workers import WORKERS
from tests.support.model_factory import onnx_identity, onnx_slow
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

ENHANCE_YOUR_CALM, REFUSED_STREAM = 11, 7
EMPTY = framed(b"")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("http2-models")
    onnx_identity(repository, "identity", "UINT8")
    onnx_slow(repository, iterations=4000, extra="instance_group [ { count: 1 } ]")
    return repository


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    """A server whose log is clean at the end: nothing that these tests send may raise."""
    with ServerProcess(models) as server:
        yield server
        assert "Traceback" not in server.log
        assert server.terminate() == 0


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Peer]:
    with Peer(server.grpc) as peer:
        yield peer


def flood(peer: Peer, data: bytes) -> int:
    """Send from another thread until the server hangs up; the code of its GOAWAY."""

    def send() -> None:
        try:
            peer.send(data)
        except OSError:
            pass  # closed while we were sending: what the test waits for

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return peer.next(h2.GOAWAY).code
    finally:
        peer.socket.shutdown(2)
        thread.join()


FLOODS = {
    "PING": frame(h2.PING, 0, 0, bytes(8)) * 5000,
    "SETTINGS": frame(h2.SETTINGS, 0, 0) * 5000,
    "PRIORITY": frame(h2.PRIORITY, 0, 1, bytes(5)) * 5000,
    "unknown frames": frame(0xAA, 0, 0) * 5000,
    "WINDOW_UPDATE": h2.window_update(0, 1) * 5000,
}


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_frames_that_ask_for_nothing_ends_the_connection(peer: Peer, data: bytes) -> None:
    assert flood(peer, data) == ENHANCE_YOUR_CALM


def test_a_client_that_takes_an_answer_byte_by_byte_is_sent_away(server: ServerProcess) -> None:
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(1 << 20)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 1 << 20])
    with Peer(server.grpc, initial_window_size=0) as peer:
        peer.open(1, "ModelInfer")
        peer.data(1, framed(request.SerializeToString()))
        assert flood(peer, h2.window_update(1, 1) * 5000) == ENHANCE_YOUR_CALM


def test_a_client_that_opens_its_windows_as_it_reads_is_served(server: ServerProcess) -> None:
    """2,000 updates, many of which come when all has been sent."""
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(8 << 20)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 8 << 20])
    with Peer(server.grpc, initial_window_size=1 << 30) as peer:
        peer.send(h2.window_update(0, 1 << 30))
        for number in (1, 3):
            answer = peer.call(number, "ModelInfer", request)
            assert answer.status == 0
            peer.send((h2.window_update(number, 16_384) + h2.window_update(0, 16_384)) * 512)
        assert peer.is_served(5)


def test_a_client_that_widens_the_window_of_each_call_may_have_many_calls_under_way(peer: Peer) -> None:
    """gRPC's clients send a WINDOW_UPDATE for each call that they begin, and more for the connection, before any answer."""
    for number in range(1, 2001, 2):
        peer.open(number)
        peer.send(h2.window_update(number, 5) + h2.window_update(0, 5))
    assert peer.is_served(2001)


def test_all_calls_of_a_connection_may_be_cancelled_at_once(peer: Peer) -> None:
    """A client whose calls have one deadline does so."""
    for number in range(1, 2048, 2):
        peer.open(number)
    peer.send(b"".join(frame(h2.RST_STREAM, 0, number, b"\0\0\0\x08") for number in range(1, 2048, 2)))
    assert peer.is_served(2049)


def test_many_settings_in_one_frame_cost_no_more_than_one(peer: Peer) -> None:
    for number in range(1, 2001, 2):
        peer.open(number)
    peer.send(frame(h2.SETTINGS, 0, 0, b"\0\4\0\1\0\0" * 2700))
    assert peer.is_served(2001)


def test_a_long_control_frame_ends_the_connection(peer: Peer) -> None:
    peer.send(frame(h2.SETTINGS, 0, 0, b"\0\4\0\1\0\0" * 2800))
    assert peer.goaway().code == 6  # FRAME_SIZE_ERROR


def test_the_streams_of_one_connection_have_bounded_requests_under_way(server: ServerProcess) -> None:
    """8,000 requests on 40 streams, for a model that takes half a second for each: the rest stays unread."""
    request = pb.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    body = framed(request.SerializeToString()) * 200
    with Peer(server.grpc) as peer:
        for number in range(1, 81, 2):
            peer.open(number, "ModelStreamInfer")
            peer.data(number, body, end=False)
        assert peer.is_served(81)
        found = samples(server)
        assert 256 <= found['nv_inference_pending_request_count{model="slow",version="1"}'] <= 1024
    wait_until(
        lambda: samples(server)['nv_inference_pending_request_count{model="slow",version="1"}'] == 0,
        what="the end of what nobody waits for",
    )


def test_rapid_resets_end_the_connection(peer: Peer) -> None:
    block = peer.block()
    again = peer.block()
    calls = [
        frame(h2.HEADERS, h2.END_HEADERS, number, block if number == 1 else again)
        + frame(h2.RST_STREAM, 0, number, b"\0\0\0\x08")
        for number in range(1, 10_000, 2)
    ]
    assert flood(peer, b"".join(calls)) == ENHANCE_YOUR_CALM


def test_empty_data_frames_without_an_end_end_the_connection(peer: Peer) -> None:
    peer.open(1)
    assert flood(peer, frame(h2.DATA, 0, 1) * 5000) == ENHANCE_YOUR_CALM


def test_an_endless_header_block_ends_the_connection(peer: Peer) -> None:
    peer.send(frame(h2.HEADERS, 0, 1, peer.block()))
    assert flood(peer, frame(h2.CONTINUATION, 0, 1) * 5000) == ENHANCE_YOUR_CALM


def test_a_client_that_cancels_often_but_also_lets_calls_finish_keeps_its_connection(peer: Peer) -> None:
    number = 1
    for _ in range(1500):
        peer.open(number)
        peer.send(frame(h2.RST_STREAM, 0, number, b"\0\0\0\x08"))
        assert peer.is_served(number + 2)
        number += 4


def test_streams_over_the_limit_are_refused_and_the_others_go_on(peer: Peer) -> None:
    for number in range(1, 2 * 1024 + 2, 2):
        peer.open(number)
    peer.data(2 * 1024 + 1, EMPTY)
    assert peer.answer(2 * 1024 + 1).headers["reset"] == str(REFUSED_STREAM)
    peer.data(1, EMPTY)
    assert peer.answer(1).status == 0


def test_a_client_that_does_not_read_costs_bounded_memory(server: ServerProcess) -> None:
    """600 responses of 1 MB each, asked for without reading: waiting bytes are bounded by the concurrent streams, and freed."""
    before = server.memory()
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(1 << 20)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 1 << 20])
    body = framed(request.SerializeToString())
    with Peer(server.grpc) as peer:
        for number in range(1, 201, 2):
            peer.open(number, "ModelInfer")
            peer.data(number, body)
        with Peer(server.grpc) as other:
            assert other.is_served(1)
        assert server.memory() - before < 400 << 20
    kept = WORKERS * 128 << 20  # shared memory of each worker that stays for its next requests
    wait_until(lambda: server.memory() - before < (200 << 20) + kept, what="memory given back")


def test_control_frames_are_not_answered_without_end_to_a_client_that_does_not_read(server: ServerProcess) -> None:
    with Peer(server.grpc, initial_window_size=(1 << 31) - 1) as peer:
        request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(12 << 20)])
        request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 12 << 20])
        peer.send(h2.window_update(0, (1 << 31) - 1 - 65_535))
        peer.open(1, "ModelInfer")
        peer.data(1, framed(request.SerializeToString()))
        assert flood(peer, frame(h2.PING, 0, 0, bytes(8)) * 5000) == ENHANCE_YOUR_CALM


def test_a_call_that_goes_away_is_cancelled_and_the_next_one_is_served(server: ServerProcess) -> None:
    """The one instance takes over half a second a request, so twenty abandoned calls would hold the next one for ten."""
    request = pb.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    body = framed(request.SerializeToString())
    with Peer(server.grpc) as peer:
        for number in range(1, 41, 2):
            peer.open(number, "ModelInfer")
            peer.data(number, body)
        for number in range(1, 21, 2):
            peer.send(frame(h2.RST_STREAM, 0, number, b"\0\0\0\x08"))
    client = triton.InferenceServerClient(server.grpc)
    try:
        inputs = [triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))]
        client.infer("slow", inputs)
        assert client.get_inference_statistics("slow").model_stats[0].inference_count < 10
    finally:
        client.close()


# -- fuzz ------------------------------------------------------------------------------------------------------------
kinds = st.one_of(st.integers(0, 9), st.integers(0, 255))
stream_ids = st.one_of(st.sampled_from([0, 1, 3, 2, 5]), st.integers(0, (1 << 32) - 1))
wild_frames = st.builds(frame, kinds, st.integers(0, 255), stream_ids, st.binary(max_size=64))
HEAD = h2.request_block(hpack.Encoder())
tame_frames = st.sampled_from(
    [
        frame(h2.HEADERS, h2.END_HEADERS, 1, HEAD),
        frame(h2.HEADERS, h2.END_HEADERS, 3, HEAD),
        frame(h2.HEADERS, 0, 5, HEAD[:9]),
        frame(h2.CONTINUATION, h2.END_HEADERS, 5, HEAD[9:]),
        frame(h2.DATA, 0, 1, EMPTY[:3]),
        frame(h2.DATA, h2.END_STREAM, 1, EMPTY[3:]),
        frame(h2.DATA, h2.END_STREAM, 3, EMPTY),
        frame(h2.DATA, 0, 3, b"\0\xff\xff\xff\xff"),
        frame(h2.RST_STREAM, 0, 3, bytes(4)),
        h2.settings(initial_window_size=0),
        h2.settings(initial_window_size=100_000),
        h2.window_update(0, 1000),
        h2.window_update(1, 1 << 30),
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.one_of(wild_frames, tame_frames, st.binary(max_size=40)), max_size=12), data=st.data())
def test_after_any_input_the_connection_ends_cleanly_and_others_are_served(
    server: ServerProcess, frames: list[bytes], data: st.DataObject
) -> None:
    sent = b"".join(frames)
    cut = data.draw(st.integers(0, len(sent)))
    with Peer(server.grpc) as peer:
        try:
            peer.send(sent[:cut])
            peer.send(sent[cut:])
            peer.socket.shutdown(1)
        except OSError:
            pass  # the server had already hung up
        codes = []
        while (found := peer.frame()) is not None:
            if found.kind == h2.GOAWAY:
                codes.append(found.code)
        assert 2 not in codes, "INTERNAL_ERROR: the server did not foresee this"
    with Peer(server.grpc) as other:
        assert other.is_served(1)


def test_a_real_call_with_any_byte_changed_is_survived(server: ServerProcess) -> None:
    request = pb.ModelInferRequest(model_name="identity", id="1", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 4])
    call = (
        h2.PREFACE
        + h2.settings()
        + frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_block(hpack.Encoder(), h2.SERVICE + "ModelInfer"))
        + frame(h2.DATA, h2.END_STREAM, 1, framed(request.SerializeToString()))
    )
    chance = random.Random(7)
    for _ in range(150):
        broken = bytearray(call)
        for _ in range(chance.choice([1, 1, 2, 5])):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        with Peer(server.grpc, handshake=False) as peer:
            try:
                peer.send(bytes(broken))
                peer.socket.shutdown(1)
            except OSError:
                pass  # the server had already hung up
            while (found := peer.frame()) is not None:
                assert not (found.kind == h2.GOAWAY and found.code == 2)
    with Peer(server.grpc) as other:
        assert other.is_served(1)


# -- the end ---------------------------------------------------------------------------------------------------------
def test_a_shutdown_announces_itself_finishes_what_is_under_way_and_closes(tmp_path: Path) -> None:
    model = GatedModel(tmp_path / "models", tmp_path)
    request = pb.ModelInferRequest(model_name=model.name, id="one", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    with ServerProcess(tmp_path / "models") as server:
        with Peer(server.grpc) as peer, Peer(server.grpc) as idle:
            assert idle.is_served(1)
            peer.open(1, "ModelInfer")
            peer.data(1, framed(request.SerializeToString()))
            assert peer.is_served(3)
            model.wait_for("one")
            os.kill(server.pid, signal.SIGTERM)
            notice = peer.next(h2.GOAWAY)
            assert (notice.code, int.from_bytes(notice.payload[:4], "big")) == (0, (1 << 31) - 1)
            ping = peer.next(h2.PING)
            peer.send(frame(h2.PING, h2.ACK, 0, ping.payload))
            final = peer.next(h2.GOAWAY)
            assert (final.code, int.from_bytes(final.payload[:4], "big")) == (0, 3)
            model.open()
            assert peer.answer(1).status == 0
            assert peer.frame() is None
            assert idle.goaway().code == 0
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.log
