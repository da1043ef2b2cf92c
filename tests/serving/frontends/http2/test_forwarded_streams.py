"""Calls that one gRPC frontend forwards to another behave as without it: answers, order, bounds, and every end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.cli.options import Options
from serving.core.response_flow import MAX_AHEAD
from serving.frontends.grpc.call import CallServices, Method
from serving.frontends.grpc.call_headers import CallHead, request_fields
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http2.connection import STREAM_WINDOW, Connection
from serving.frontends.http2.forwarding import ORIGIN_WINDOW, ForwardedStream
from serving.frontends.shared.authorisation import Authoriser
from tests.serving.frontends.frontends_in_thread import Frontends, frontends
from tests.serving.frontends.http2.http2_peer import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    RST_STREAM,
    WINDOW_UPDATE,
    Peer,
    frame,
    framed,
    window_update,
)
from tests.serving.streaming_backend import StreamingBackend, streaming_model
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, wait_until

CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNAVAILABLE = 1, 3, 4, 5, 14
EMPTY = framed(b"")


class Forwarding:
    """`front` is the address of a frontend that forwards every call to the one of `core`, over socketpairs."""

    def __init__(self, core: Frontends) -> None:
        self.core = core
        self.peers: list[Any] = []  # what the core is told of each client
        self._grpc = self.run(self._start)
        self.front = "{}:{}".format(*self._grpc.address)

    def run(self, function: Callable[[], Any]) -> Any:
        """What the coroutine function returns, run on the frontends' loop."""
        return asyncio.run_coroutine_threadsafe(function(), self.core.loop).result(PATIENCE_S)

    async def _start(self) -> GrpcServer:
        options = Options(model_repository=(), grpc_address="127.0.0.1", grpc_port=0)
        authoriser = Authoriser.from_options(options, "grpc")
        grpc = GrpcServer(self.core.server, options, authoriser, lambda path: Method(path, "", self._call))
        await grpc.start()
        return grpc

    def _call(
        self, connection: Connection[Any], stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> ForwardedStream:
        peer = connection.transport.get_extra_info("peername")

        async def connect(factory: Callable[[], asyncio.BaseProtocol]) -> None:
            self.peers.append(peer)
            loop = asyncio.get_running_loop()
            here, there = socket.socketpair()
            await loop.connect_accepted_socket(lambda: self.core.grpc_server.forwarded_connection(peer), there)
            await loop.create_unix_connection(factory, sock=here)

        return ForwardedStream(connection, stream_id, request_fields(head), connect)

    def core_streams(self) -> int:
        """How many calls the core has open."""
        return sum(connection.open_streams for connection in self._core_connections())

    def core_connections(self) -> int:
        return len(self._core_connections())

    def _core_connections(self) -> list[Any]:
        async def connections() -> list[Any]:
            return list(self.core.grpc_server._connections)

        return list(self.run(connections))

    def end_core(self) -> None:
        self.run(self.core.grpc_server.close)

    def drain(self) -> None:
        async def drain() -> None:
            await asyncio.gather(self._grpc.drain(), self.core.grpc_server.drain())

        self.run(drain)

    def close(self) -> None:
        self.run(self._grpc.close)


@contextlib.contextmanager
def forwarding(repository: Path, **options: Any) -> Iterator[Forwarding]:
    with frontends(repository, **options) as core:
        running = Forwarding(core)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forwarding]:
    repository = tmp_path_factory.mktemp("forwarded")
    onnx_identity(repository, "identity", "UINT8")
    streaming_model(repository)
    with forwarding(repository) as running:
        yield running


@pytest.fixture
def peer(server: Forwarding) -> Iterator[Peer]:
    with Peer(server.front) as peer:
        yield peer
    wait_until(lambda: server.core_connections() == 0, what="the end of the client's connection in the core")


def identity(size: int, identifier: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="identity", id=identifier)
    request.raw_input_contents.append((np.arange(size) % 251).astype(np.uint8).tobytes())
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, size])
    return request


def streaming(count: int, **parameters: int | str) -> bytes:
    request = pb.ModelInferRequest(model_name="streaming", raw_input_contents=[np.int32(count).tobytes()])
    request.inputs.add(name="IN", datatype="INT32", shape=[1])
    for key, value in parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(request.parameters[key], kind, value)
    return framed(request.SerializeToString())


def messages(body: bytes) -> list[bytes]:
    found = []
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        found.append(body[5:end])
        body = body[end:]
    return found


# -- answers ---------------------------------------------------------------------------------------------------------
def test_a_unary_call_is_answered_and_so_are_others_of_its_connection(server: Forwarding, peer: Peer) -> None:
    metadata = peer.call(1, "ServerMetadata", pb.ServerMetadataRequest())
    assert metadata.status == 0
    assert pb.ServerMetadataResponse.FromString(metadata.message).version
    assert metadata.headers["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert [peer.is_served(number) for number in range(3, 30, 2)] == [True] * 14
    assert server.core_connections() == 1


def test_the_core_knows_the_address_of_the_client(server: Forwarding, peer: Peer) -> None:
    assert peer.is_served(1)
    assert server.peers[-1] == peer.socket.getsockname()
    (connection,) = server._core_connections()
    assert connection.transport.get_extra_info("peername") == peer.socket.getsockname()


def test_an_error_keeps_its_status_and_words(peer: Peer) -> None:
    answer = peer.call(1, "ModelReady", pb.ModelReadyRequest(name="identity", version="x"))
    assert answer.status == INVALID_ARGUMENT
    answer = peer.call(3, "ModelConfig", pb.ModelConfigRequest(name="nope"))
    assert (answer.status, answer.body) == (NOT_FOUND, b"")
    assert "nope" in answer.headers["grpc-message"]


def test_a_call_answered_before_its_request_is_whole_leaves_the_connection_well(peer: Peer) -> None:
    peer.open(1, "Nope")
    assert peer.answer(1).status == 12
    assert peer.next(RST_STREAM, 1).code == 0
    peer.data(1, bytes(100_000))
    assert peer.is_served(3)


def test_a_deadline_ends_the_call(peer: Peer) -> None:
    peer.open(1, "ServerLive", grpc_timeout="50m")
    assert peer.answer(1).status == DEADLINE_EXCEEDED


def test_a_stream_answers_in_order_and_ends_with_its_client(peer: Peer) -> None:
    peer.open(1, "ModelStreamInfer")
    peer.send(window_update(0, 1 << 30), window_update(1, 1 << 30))
    for number in range(20):
        peer.data(1, framed(identity(10_000 * (number % 3) + 1, str(number)).SerializeToString()), end=False)
    peer.data(1, b"")
    answer = peer.answer(1)
    assert answer.status == 0
    responses = [pb.ModelStreamInferResponse.FromString(message).infer_response for message in messages(answer.body)]
    assert [response.id for response in responses] == [str(number) for number in range(20)]


def test_large_messages_pass_both_ways(peer: Peer) -> None:
    request = identity(STREAM_WINDOW + STREAM_WINDOW // 4)
    peer.send(window_update(0, 1 << 30))
    peer.open(1, "ModelInfer")
    peer.send(window_update(1, 1 << 30))
    peer.data(1, framed(request.SerializeToString()))
    answer = peer.answer(1)
    assert answer.status == 0
    assert pb.ModelInferResponse.FromString(answer.message).raw_output_contents == request.raw_input_contents


# -- bounds ----------------------------------------------------------------------------------------------------------
def test_padding_does_not_eat_up_the_window(peer: Peer) -> None:
    """Frames of one byte with 254 of padding: without the padding's part the window would be used up at a third of them."""
    body = framed(identity(100).SerializeToString())
    padded = b"".join(frame(DATA, PADDED, 1, b"\xfe" + body[at : at + 1] + bytes(254)) for at in range(len(body)))
    peer.open(1, "ModelStreamInfer")
    peer.send(padded)
    returned = sum(int.from_bytes(peer.next(WINDOW_UPDATE, 1).payload, "big") for _ in range(len(body)))
    assert returned == 255 * len(body)
    peer.data(1, b"")
    assert peer.answer(1).status == 0


def test_the_client_may_send_no_more_than_the_core_takes(server: Forwarding, peer: Peer) -> None:
    """The core stops reading after 256 requests under way on a stream."""
    StreamingBackend.gate.clear()
    peer.open(1, "ModelStreamInfer")
    request = streaming(0, wait="yes")
    filler = framed(identity(1 << 20).SerializeToString())
    try:
        peer.data(1, request * 256, end=False)
        sent = 256 * len(request)
        while sent + len(filler) < STREAM_WINDOW:
            peer.data(1, filler, end=False)
            sent += len(filler)
        peer.data(1, bytes(STREAM_WINDOW - sent), end=False)
        assert peer.is_served(3)  # so all of it has been read
        peer.data(1, b"x", end=False)
        assert peer.next(RST_STREAM, 1).code == 3  # FLOW_CONTROL_ERROR
        wait_until(lambda: server.core_streams() == 0, what="the end of the stream in the core")
    finally:
        StreamingBackend.gate.set()


def test_a_client_that_does_not_read_holds_a_decoupled_model_back(server: Forwarding, peer: Peer) -> None:
    before = StreamingBackend.sent
    size = 1 << 20
    most = (MAX_AHEAD + ORIGIN_WINDOW) // size + 2
    peer.send(window_update(0, 1 << 30))
    peer.open(1, "ModelStreamInfer")
    peer.data(1, streaming(2 * most, size=size))
    wait_until(lambda: StreamingBackend.sent - before >= MAX_AHEAD // size, what="the model's first responses")
    assert peer.is_served(3)
    assert StreamingBackend.sent - before <= most
    peer.send(window_update(1, 1 << 30))
    ends = False
    while not ends:
        found = peer.frame()
        assert found is not None
        ends = bool(found.stream_id == 1 and found.kind in (DATA, HEADERS) and found.flags & END_STREAM)
    assert StreamingBackend.sent - before == 2 * most


# -- ends ------------------------------------------------------------------------------------------------------------
def open_stream(server: Forwarding, peer: Peer) -> int:
    """A stream whose model answers once and waits; how many requests had seen that they were cancelled."""
    StreamingBackend.gate.clear()
    peer.open(1, "ModelStreamInfer")
    peer.data(1, streaming(1000, every_ms=10), end=False)
    peer.next(DATA, 1)
    wait_until(lambda: server.core_streams() == 1, what="this call alone in the core")
    return StreamingBackend.cancelled


def test_a_call_that_its_client_cancels_ends_in_the_core(server: Forwarding, peer: Peer) -> None:
    cancelled = open_stream(server, peer)
    peer.send(frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
    wait_until(lambda: StreamingBackend.cancelled == cancelled + 1, what="cancelling")
    wait_until(lambda: server.core_streams() == 0, what="the end of the stream in the core")
    assert peer.is_served(3)


def test_a_client_that_goes_away_cancels_its_calls(server: Forwarding) -> None:
    with Peer(server.front) as peer:
        cancelled = open_stream(server, peer)
    wait_until(lambda: StreamingBackend.cancelled == cancelled + 1, what="cancelling")
    wait_until(lambda: server.core_connections() == 0, what="the end of the connection in the core")


def test_a_client_that_breaks_the_protocol_loses_its_calls_in_the_core_too(server: Forwarding) -> None:
    with Peer(server.front) as peer:
        cancelled = open_stream(server, peer)
        peer.send(frame(WINDOW_UPDATE, 0, 0, bytes(4)))
        assert peer.goaway().code == 1  # PROTOCOL_ERROR
        wait_until(lambda: StreamingBackend.cancelled == cancelled + 1, what="cancelling")


def test_a_watch_hears_that_the_server_drains(tmp_path: Path) -> None:
    with forwarding(tmp_path) as server, Peer(server.front) as peer:
        peer.send(frame(1, 4, 1, peer.block("/grpc.health.v1.Health/Watch")))
        peer.data(1, EMPTY)
        peer.next(DATA, 1)
        server.drain()
        assert peer.next(GOAWAY).code == 0
        assert peer.answer(1).status == UNAVAILABLE


def test_a_client_whose_calls_the_core_drops_loses_its_connection(tmp_path: Path) -> None:
    with forwarding(tmp_path) as server, Peer(server.front) as peer, Peer(server.front) as idle:
        assert idle.is_served(1)
        peer.send(frame(1, 4, 1, peer.block("/grpc.health.v1.Health/Watch")))
        peer.data(1, EMPTY)
        peer.next(DATA, 1)
        server.end_core()
        while peer.frame() is not None:
            pass
        assert idle.is_served(3)  # over a new connection to the core
