"""All connections together hold at most --request-memory-limit bytes of requests; a request without room is refused."""

import gzip
import select
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import hpack
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from serving.core.errors import Exhausted
from serving.frontends.http2.headers import encode_headers
from serving.resources.request_memory import RequestMemory, machine_memory
from tests.serving.frontends.http2.http2_peer import (
    END_HEADERS,
    HEADERS,
    RST_STREAM,
    SERVICE,
    Peer,
    frame,
    framed,
    window_update,
)
from tests.serving.frontends.raw_http import RawClient
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess, wait_until

pytestmark = pytest.mark.long
MB = 1 << 20
LIMIT = 32 * MB
PATH = "/v2/models/identity/infer"
VALUES = np.ones((1, 2 * MB), np.float32)  # 8 MB
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 4, 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository, extra="instance_group { count: 1 kind: KIND_CPU }")
    with ServerProcess(repository, f"--request-memory-limit={LIMIT}") as process:
        yield process


def http_request() -> bytes:
    body, header = tritonclient.http.InferenceServerClient.generate_request_body([http_input(VALUES)])
    lines = [f"POST {PATH} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, f"Inference-Header-Content-Length: {header}", "", ""]).encode() + body


def http_input(values: np.ndarray) -> tritonclient.http.InferInput:
    return tritonclient.http.InferInput("INPUT0", values.shape, "FP32").set_data_from_numpy(values)


def grpc_infer(server: ServerProcess, values: np.ndarray) -> np.ndarray:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        tensor = tritonclient.grpc.InferInput("INPUT0", values.shape, "FP32").set_data_from_numpy(values)
        return client.infer("identity", [tensor]).as_numpy("OUTPUT0")


def http_infer(server: ServerProcess, values: np.ndarray) -> np.ndarray:
    client = tritonclient.http.InferenceServerClient(server.http)
    try:
        return client.infer("identity", [http_input(values)]).as_numpy("OUTPUT0")
    finally:
        client.close()


def own_memory(server: ServerProcess) -> int:
    """Bytes that the server holds itself."""
    return server.memory("RssAnon")


def answered(clients: list[RawClient]) -> list[RawClient]:
    readable = select.select([client.socket for client in clients], [], [], 0)[0]
    return [client for client in clients if client.socket in readable]


def test_many_slow_big_clients_cannot_fill_the_memory(server: ServerProcess) -> None:
    request = http_request()
    http_infer(server, VALUES)
    before = own_memory(server)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.http)) for _ in range(40)]
        for client in clients:
            client.send(request[: 4 * MB])
        refused = wait_until(lambda: len(found := answered(clients)) >= 32 and found, what="the refusal of most")
        answers = [client.answer() for client in refused]
        assert {answer.status for answer in answers} == {503}
        assert f"memory for requests, {LIMIT} bytes (--request-memory-limit), is full" in answers[0].json["error"]
        assert own_memory(server) - before < 3 * LIMIT  # 40 halves are 160 MB
        assert http_infer(server, VALUES[:, :4]).size == 4

        waiting = [client for client in clients if client not in refused]
        assert waiting
        for client in waiting[2:]:
            client.__exit__()
        wait_until(lambda: http_infer_succeeds(server), what="room after others left")
        for client in waiting[:2]:
            client.send(request[4 * MB :])
            assert client.answer().status == 200


def http_infer_succeeds(server: ServerProcess) -> bool:
    try:
        return bool(http_infer(server, VALUES).size)
    except (InferenceServerException, OSError):  # refused, perhaps while it was still sending
        return False


def test_headers_that_refer_to_large_ones_cannot_fill_the_memory(server: ServerProcess) -> None:
    usual = {":method": "POST", ":scheme": "http", ":path": SERVICE + "ModelStreamInfer", "te": "trailers"}
    usual["content-type"] = "application/grpc"
    block = encode_headers((name.encode(), value.encode()) for name, value in usual.items())
    taken_up = hpack.Encoder().encode([("large", "x" * 3900)])  # by the dynamic table
    newest = b"\xbe"  # of that table
    with Peer(server.grpc) as peer:
        peer.send(frame(HEADERS, END_HEADERS, 1, block + taken_up))
        for stream in range(3, 2001, 2):
            number = encode_headers([(b"number", b"%d" % stream)])  # so that no block is like the one before
            peer.send(frame(HEADERS, END_HEADERS, stream, block + newest * 15 + number))
        refused = peer.answer(1999)
        assert refused.status == RESOURCE_EXHAUSTED
        assert grpc_infer(server, VALUES[:, :4]).size == 4
    wait_until(lambda: http_infer_succeeds(server), what="room after the connection closed")


def test_many_slow_big_calls_cannot_fill_the_memory(server: ServerProcess) -> None:
    claimed = b"\0" + (8 * MB).to_bytes(4, "big")
    with Peer(server.grpc) as peer:
        for number in range(10):
            peer.open(2 * number + 1, "ModelInfer")
            peer.data(2 * number + 1, claimed + bytes(4 * MB - len(claimed)), end=False)
        refused = peer.answer(17)
        assert refused.status == RESOURCE_EXHAUSTED
        assert "--request-memory-limit" in refused.headers["grpc-message"]
        assert grpc_infer(server, VALUES[:, :4]).size == 4
        with pytest.raises(InferenceServerException, match="try again later"):
            grpc_infer(server, VALUES)
        assert not http_infer_succeeds(server)  # the two protocols share the limit
    wait_until(lambda: http_infer_succeeds(server), what="room after the connection closed")
    assert grpc_infer(server, VALUES).size == VALUES.size


def test_answered_requests_are_not_counted_any_more(server: ServerProcess) -> None:
    for _ in range(2 * LIMIT // VALUES.nbytes):
        assert http_infer(server, VALUES).size == VALUES.size
        assert grpc_infer(server, VALUES).size == VALUES.size


def test_a_request_is_counted_until_its_client_has_taken_the_answer(server: ServerProcess) -> None:
    with ExitStack() as stack:
        statuses = []
        for _ in range(8):
            client = stack.enter_context(RawClient(server.http, receive_buffer=64 << 10))
            client.send(http_request())
            statuses.append(int(client.file.readline().split()[1]))  # and no more is read
        assert statuses == [200] * 3 + [503] * 5
        assert http_infer(server, VALUES[:, :4]).size == 4
    wait_until(lambda: http_infer_succeeds(server), what="room after the clients left")


def test_a_call_is_counted_until_its_client_has_taken_the_answer(server: ServerProcess) -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=VALUES.shape)
    request = pb.ModelInferRequest(model_name="identity", inputs=[tensor], raw_input_contents=[VALUES.tobytes()])
    with Peer(server.grpc) as peer:  # which opens no window
        for number in range(4):
            peer.open(2 * number + 1, "ModelInfer")
            peer.data(2 * number + 1, framed(request.SerializeToString()))
        assert peer.answer(7).status == RESOURCE_EXHAUSTED
        assert grpc_infer(server, VALUES[:, :4]).size == 4
        peer.send(frame(RST_STREAM, 0, 1, bytes(4)), window_update(0, 16 * MB), window_update(3, 16 * MB))
        assert len(peer.answer(3).message) > VALUES.nbytes
        wait_until(lambda: http_infer_succeeds(server), what="room for a call that was reset and one that was read")
    wait_until(lambda: grpc_infer(server, VALUES).size, what="room after the connection closed")


def test_messages_of_a_stream_are_counted_until_they_are_answered(server: ServerProcess) -> None:
    sizes = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: sizes.append(error or result.as_numpy("OUTPUT0").size))
        tensor = tritonclient.grpc.InferInput("INPUT0", VALUES.shape, "FP32").set_data_from_numpy(VALUES)
        for number in range(2 * LIMIT // VALUES.nbytes):
            client.async_stream_infer("identity", [tensor])
            wait_until(lambda count=number: len(sizes) > count, what="the answer")
    assert set(sizes) == {VALUES.size}


def test_bodies_in_chunks_are_counted_as_they_come(server: ServerProcess) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.http)) for _ in range(10)]
        for client in clients:
            client.send(f"POST {PATH} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            client.send(b"%x\r\n%b" % (8 * MB, b" " * 4 * MB))
        refused = wait_until(lambda: len(found := answered(clients)) >= 2 and found, what="the refusal of two")
        assert {client.answer().status for client in refused} == {503}


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_body_counts_with_its_unpacked_size(server: ServerProcess, pack: object) -> None:
    encoding = "gzip" if pack is gzip.compress else "deflate"
    body = pack(b" " * (LIMIT + MB))  # type: ignore[operator]
    with RawClient(server.http) as client:
        answer = client.request("POST", PATH, body, Content_Encoding=encoding)
        assert answer.status == 503
    wait_until(lambda: http_infer_succeeds(server), what="room after the refusal")


BOMBS = 60
BOMB = gzip.compress(bytes(60 * MB))


def peak_memory(server: ServerProcess) -> int:
    """The most bytes that the server has ever held."""
    return server.memory("VmHWM")


def test_many_small_bombs_over_http_cannot_fill_the_memory(server: ServerProcess) -> None:
    """60 times 60 KB, each of which becomes 60 MB: the growing bytes count."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: test\r\nContent-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n\r\n"
    before = peak_memory(server)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.http)) for _ in range(BOMBS)]
        for client in clients:
            client.send(head.encode() + BOMB)
        assert {client.answer().status for client in clients} == {503}
    assert peak_memory(server) - before < 6 * LIMIT  # 3.6 GB
    wait_until(lambda: http_infer_succeeds(server), what="room after the refusals")


def test_many_small_bombs_over_grpc_cannot_fill_the_memory(server: ServerProcess) -> None:
    before = peak_memory(server)
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(server.grpc)) for _ in range(BOMBS)]
        for peer in peers:
            peer.open(1, "ModelInfer", grpc_encoding="gzip")
            peer.data(1, framed(BOMB, 1))
        assert {peer.answer(1).status for peer in peers} == {RESOURCE_EXHAUSTED}
    assert peak_memory(server) - before < 6 * LIMIT
    wait_until(lambda: http_infer_succeeds(server), what="room after the refusals")


def test_bombs_for_which_there_is_room_are_not_held_at_the_same_time(server: ServerProcess) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: test\r\nContent-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n\r\n"
    with ServerProcess(server.repositories, f"--request-memory-limit={4096 * MB}") as roomy, ExitStack() as stack:
        before = peak_memory(roomy)
        clients = [stack.enter_context(RawClient(roomy.http)) for _ in range(20)]
        for client in clients:
            client.send(head.encode() + BOMB)
        assert {client.answer().status for client in clients} == {400}
        assert peak_memory(roomy) - before < 700 * MB  # together they are 1.2 GB, and as much again while they are read


@pytest.fixture(scope="module")
def impatient(server: ServerProcess) -> Iterator[ServerProcess]:
    with ServerProcess(
        server.repositories, f"--request-memory-limit={LIMIT}", "--request-stall-secs=2", "--request-min-rate=100"
    ) as process:
        yield process


def test_unfinished_bodies_do_not_hold_the_memory(impatient: ServerProcess) -> None:
    request = http_request()
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(impatient.http)) for _ in range(5)]
        for client in clients:
            client.send(request[: 5 * MB])
        wait_until(lambda: not http_infer_succeeds(impatient), what="the bodies fill the memory")
        assert {client.answer().status for client in clients} == {408}
        assert http_infer(impatient, VALUES).size == VALUES.size


def test_unfinished_messages_do_not_hold_the_memory(impatient: ServerProcess) -> None:
    claimed = b"\0" + (8 * MB).to_bytes(4, "big")
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(impatient.grpc)) for _ in range(4)]
        for peer, method in zip(
            peers, ("ModelInfer", "ModelStreamInfer", "ModelInfer", "ModelStreamInfer"), strict=True
        ):
            peer.open(1, method)
            peer.data(1, claimed + bytes(7 * MB), end=False)
        assert {peer.answer(1).status for peer in peers} == {DEADLINE_EXCEEDED}
        assert grpc_infer(impatient, VALUES).size == VALUES.size


def test_a_client_that_sends_slowly_but_steadily_is_served(impatient: ServerProcess) -> None:
    """Over three spans of patience, each with as much as it asks for."""
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}'
    body += b" " * (12_000 - len(body))
    with RawClient(impatient.http) as client, Peer(impatient.grpc) as peer:
        client.send(f"POST {PATH} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        peer.open(1, "ServerLive")
        message = framed(b"\x7a\x03abc" * 2400)  # unknown fields
        for number in range(12):
            client.send(body[1000 * number : 1000 * (number + 1)])
            peer.data(1, message[1001 * number : 1001 * (number + 1)], end=number == 11)
            time.sleep(0.3)
        assert client.answer().status == 200
        assert peer.answer(1).status == 0


def test_room_is_given_back() -> None:
    memory = RequestMemory(10)
    memory.take(6)
    with pytest.raises(Exhausted, match="10 bytes"):
        memory.take(5)
    memory.give(6)
    memory.take(10)
    assert memory.taken == 10


def test_the_limit_is_by_default_a_quarter_of_the_memory() -> None:
    assert RequestMemory().limit == machine_memory() // 4
