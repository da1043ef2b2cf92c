"""gRPC's keepalive flags and compressed responses, frame by frame."""

import queue
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from serving.frontends.http2.keepalive import Keepalive, KeepaliveSettings
from tests.serving.frontends.frontends_in_thread import frontends
from tests.serving.frontends.http2.http2_peer import ACK, GOAWAY, PING, Peer, frame, window_update
from tests.serving.streaming_backend import streaming_model
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository, "identity", "FP32")
    streaming_model(repository)
    return repository


COUNT = 14


def infer(elements: int) -> pb.ModelInferRequest:
    array = np.zeros((1, elements), np.float32)
    message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[array.tobytes()])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
    return message


def test_a_client_that_pings_too_often_is_sent_away(repository: Path) -> None:
    with frontends(repository) as server, Peer(server.grpc) as peer:
        assert peer.is_served(1)
        for _ in range(5):
            peer.send(frame(PING, 0, 0, b"12345678"))
        ending = peer.goaway()
        assert ending.code == 0xB  # ENHANCE_YOUR_CALM
        assert ending.payload[8:] == b"too_many_pings"


@pytest.mark.parametrize("size", [1 << 10, 300 << 10])
def test_a_stock_client_keeps_its_stream_while_responses_come_slowly(repository: Path, size: int) -> None:
    """The client pings to measure the bandwidth, and opens the windows again with each ping."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with frontends(repository) as server, triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        asked = triton.InferInput("IN", [1], "INT32").set_data_from_numpy(np.array([COUNT], np.int32))
        client.async_stream_infer("streaming", [asked], parameters={"size": size, "every_ms": 150})
        for number in range(COUNT):
            result, error = answers.get(timeout=PATIENCE_S)
            assert error is None, f"after {number} responses"
            assert len(result.as_numpy("OUT")) == size
        client.stop_stream()


def test_pings_between_calls_are_taken(repository: Path) -> None:
    with frontends(repository) as server, Peer(server.grpc) as peer:
        for number in range(8):
            peer.send(frame(PING, 0, 0, b"12345678"))
            assert peer.is_served(2 * number + 1)


def test_any_number_of_pings_may_be_allowed(repository: Path) -> None:
    with frontends(repository, grpc_http2_max_ping_strikes=0) as server, Peer(server.grpc) as peer:
        for _ in range(20):
            peer.send(frame(PING, 0, 0, b"12345678"))
        assert peer.is_served(1)


def test_a_silent_connection_is_pinged_and_let_go(repository: Path) -> None:
    settings = {"grpc_keepalive_time": 1, "grpc_keepalive_timeout": 4, "grpc_keepalive_permit_without_calls": True}
    with frontends(repository, **settings) as server:
        with Peer(server.grpc) as peer:
            ping = peer.next(PING)
            peer.send(frame(PING, ACK, 0, ping.payload))
            assert peer.next(PING).payload == ping.payload
            while peer.frame() is not None:  # unanswered, so the connection ends
                pass
        with Peer(server.grpc) as other:
            assert other.is_served(1)


def test_an_old_connection_is_let_go(repository: Path) -> None:
    with frontends(repository, grpc_max_connection_age=1) as server, Peer(server.grpc) as peer:
        assert peer.next(GOAWAY).code == 0
        peer.send(frame(PING, ACK, 0, bytes(8)))
        while peer.frame() is not None:
            pass


def test_the_rules_of_pinging() -> None:
    settings = KeepaliveSettings(time_ms=1000, timeout_ms=500, min_ping_interval_ms=1000, max_ping_strikes=1)
    now = time.monotonic()
    keepalive = Keepalive(settings, now)
    assert not keepalive.wants_ping(now, 1, calls=True)
    assert not keepalive.wants_ping(now + 2, 1, calls=False)
    assert keepalive.wants_ping(now + 2, 1, calls=True)
    assert not keepalive.is_dead(now + 2.4)
    assert keepalive.is_dead(now + 2.6)
    keepalive.ping_answered(now + 2.7)
    assert not keepalive.is_dead(now + 9)
    assert keepalive.wants_ping(now + 4, 1, calls=True)
    keepalive.ping_answered(now + 4)
    assert not keepalive.wants_ping(now + 9, 1, calls=True)  # two without data
    pings = [keepalive.peer_pings_too_often(now + at, 1, calls=True) for at in (0, 0.5, 2, 2.1)]
    assert pings == [False, False, False, True]
    assert not keepalive.peer_pings_too_often(now + 2.2, 2, calls=True)  # there was data


@pytest.mark.parametrize(("encoding", "window"), [("gzip", 31), ("deflate", 15)])
def test_responses_are_compressed_for_clients_that_accept_it(repository: Path, encoding: str, window: int) -> None:
    with frontends(repository, grpc_infer_response_compression_level="low") as server:
        _check_compression(server.grpc, encoding, window)


def _check_compression(address: str, encoding: str, window: int) -> None:
    with Peer(address, initial_window_size=1 << 24) as peer:
        peer.send(window_update(0, 1 << 24))
        answer = peer.call(1, "ModelInfer", infer(10_000), grpc_accept_encoding=f"identity, {encoding}")
        assert (answer.headers["grpc-encoding"], answer.body[0]) == (encoding, 1)
        assert len(answer.message) < 1000
        message = pb.ModelInferResponse.FromString(zlib.decompress(answer.message, window))
        assert message.raw_output_contents[0] == bytes(40_000)
        plain = peer.call(3, "ModelInfer", infer(10_000))
        assert ("grpc-encoding" in plain.headers, plain.body[0]) == (False, 0)
        large = peer.call(5, "ModelInfer", infer(1 << 20), grpc_accept_encoding=encoding)
        assert (large.body[0], large.status) == (1, 0)
        message = pb.ModelInferResponse.FromString(zlib.decompress(large.message, window))
        assert message.raw_output_contents[0] == bytes(4 << 20)
