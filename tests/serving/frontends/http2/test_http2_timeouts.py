"""A peer that has stopped, at the start or in the middle, loses its connection after a while."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.cli.options import Options
from serving.frontends import grpc_server
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http2 import connection as http2_connection
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.client_limits import ClientTimeouts
from tests.serving.frontends.http2.http2_peer import GOAWAY, PREFACE, RST_STREAM, Peer, framed, settings, window_update
from tests.serving.in_process import core
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, wait_until

CANCELLED, DEADLINE_EXCEEDED = 1, 4  # of gRPC
SETTINGS_TIMEOUT, REFUSED_STREAM, CANCEL = 4, 7, 8  # of HTTP/2


@contextlib.asynccontextmanager
async def listening(repository: Path, **settings: Any) -> AsyncIterator[str]:
    """The address of a gRPC frontend in this process, so that its timeouts can be shortened."""
    async with core(repository, load_model=("*",)) as server:
        options = Options(model_repository=(repository,), grpc_address="127.0.0.1", grpc_port=0, **settings)
        frontend = GrpcServer(server, options, Authoriser.from_options(options, "grpc"))
        await frontend.start()
        try:
            yield "{}:{}".format(*frontend.address)
        finally:
            await frontend.close()


@pytest.fixture
def shorten(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Shorten these timeouts, which are looked at often. The peer of a test is given time enough for what it does."""
    monkeypatch.setattr(grpc_server, "_WATCH_S", 0.05)

    def to(seconds: float, *names: str) -> None:
        for name in names:
            monkeypatch.setattr(http2_connection, name, seconds)

    return to


def cut_off(peer: Peer) -> bool:
    """Whether the server has hung up, found out without reading."""
    try:
        peer.send(window_update(0, 1))
    except OSError:
        return True
    return False


@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE])
def test_a_peer_that_never_sends_its_settings_gets_goaway_and_is_dropped(
    tmp_path: Path, said: bytes, shorten: Callable[..., None]
) -> None:
    shorten(1.5, "PREFACE_TIMEOUT_S")

    async def run() -> int:
        async with listening(tmp_path) as address:
            return await asyncio.to_thread(wait_for_the_end, address)

    def wait_for_the_end(address: str) -> int:
        with Peer(address, handshake=False) as peer:
            peer.send(said)
            return peer.goaway().code

    assert asyncio.run(run()) == SETTINGS_TIMEOUT


def test_a_peer_that_goes_on_sending_after_goaway_is_cut_off(tmp_path: Path, shorten: Callable[..., None]) -> None:
    shorten(0.3, "CLOSE_TIMEOUT_S")

    def provoke(address: str) -> None:
        with Peer(address) as peer:
            peer.send(b"x" * 9)
            peer.next(GOAWAY)
            wait_until(lambda: cut_off(peer), what="the connection's end")

    async def run() -> None:
        async with listening(tmp_path) as address:
            await asyncio.to_thread(provoke, address)

    asyncio.run(run())


def test_a_peer_that_does_not_read_its_response_is_cut_off_and_others_are_served(
    tmp_path: Path, shorten: Callable[..., None]
) -> None:
    shorten(0.3, "STALLED_TIMEOUT_S", "CLOSE_TIMEOUT_S")
    onnx_identity(tmp_path, "identity", "UINT8")

    def stall(address: str) -> None:
        request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(16 << 20)])
        request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 16 << 20])
        with Peer(address, handshake=False) as peer, Peer(address) as other:
            peer.send(PREFACE, settings(initial_window_size=(1 << 31) - 1), window_update(0, 1 << 30))
            peer.open(1, "ModelInfer")
            peer.data(1, framed(request.SerializeToString()))
            number = 1
            while not cut_off(peer):
                assert other.is_served(number)
                number += 2

    async def run() -> None:
        async with listening(tmp_path) as address:
            await asyncio.wait_for(asyncio.to_thread(stall, address), PATIENCE_S)

    asyncio.run(run())


def test_a_connection_without_calls_stays(tmp_path: Path, shorten: Callable[..., None]) -> None:
    shorten(0.3, "STALLED_TIMEOUT_S", "CLOSE_TIMEOUT_S")
    shorten(1.5, "PREFACE_TIMEOUT_S")

    def idle(address: str) -> bool:
        with Peer(address) as peer:
            return all(peer.is_served(number) for number in (1, 3, 5))

    async def run() -> bool:
        async with listening(tmp_path) as address:
            with await asyncio.to_thread(Peer, address) as peer:
                await asyncio.sleep(2)  # longer than every timeout above
                return await asyncio.to_thread(peer.is_served, 1) and await asyncio.to_thread(idle, address)

    assert asyncio.run(run())


def test_a_stream_on_which_nothing_is_asked_ends_at_last(tmp_path: Path, shorten: Callable[..., None]) -> None:
    onnx_identity(tmp_path, "identity", "UINT8")
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[b"1"])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 1])

    def idle(address: str) -> None:
        with Peer(address) as peer, Peer(address) as other:
            peer.open(1, "ModelStreamInfer")
            peer.data(1, framed(request.SerializeToString()), end=False)
            other.open(1, "ModelStreamInfer")
            for one in (peer, other):
                assert one.answer(1).status == CANCELLED
                assert one.is_served(3)

    async def run() -> None:
        async with listening(tmp_path, grpc_stream_idle_secs=0.5) as address:
            await asyncio.to_thread(idle, address)

    asyncio.run(run())


def test_a_call_that_never_sends_its_message_ends_at_last(tmp_path: Path, shorten: Callable[..., None]) -> None:
    def say_nothing(address: str) -> None:
        with Peer(address) as peer:
            for number, method in ((1, "ModelInfer"), (3, "ServerLive")):
                peer.open(number, method)
                assert peer.answer(number).status == DEADLINE_EXCEEDED

    async def run() -> None:
        async with listening(tmp_path, request_stall_secs=0.3) as address:
            await asyncio.to_thread(say_nothing, address)

    asyncio.run(run())


def test_an_answer_that_is_not_taken_is_given_up(
    tmp_path: Path, shorten: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClientTimeouts, "from_options", lambda options: ClientTimeouts(unread_s=0.5))
    onnx_identity(tmp_path, "identity", "UINT8")
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(1 << 20)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, 1 << 20])

    def take_nothing(address: str) -> None:
        with Peer(address, initial_window_size=0) as peer:
            peer.open(1, "ModelInfer")
            peer.data(1, framed(request.SerializeToString()))
            assert peer.next(RST_STREAM, 1).code == CANCEL
            peer.send(settings(initial_window_size=65_535))
            assert peer.is_served(3)

    async def run() -> None:
        async with listening(tmp_path) as address:
            await asyncio.to_thread(take_nothing, address)

    asyncio.run(run())


def test_a_connection_with_many_idle_streams_gets_no_more_and_others_do(
    tmp_path: Path, shorten: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_STREAMS", 64)

    def crowd(address: str) -> None:
        with Peer(address) as greedy, Peer(address) as modest:
            numbers = iter(range(1, 10_000, 2))
            for _ in range(100):
                greedy.open(next(numbers), "ModelStreamInfer")

            def is_refused() -> bool:
                number = next(numbers)
                answer = greedy.call(number, "ServerLive", pb.ServerLiveRequest())
                return answer.headers.get("reset") == str(REFUSED_STREAM)

            wait_until(is_refused, what="the refusal of more streams")
            assert all(modest.is_served(number) for number in (1, 3, 5))

    async def run() -> None:
        async with listening(tmp_path) as address:
            await asyncio.to_thread(crowd, address)

    asyncio.run(run())
