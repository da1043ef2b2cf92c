"""Clients that do not read their answers hold a bounded part of the memory, and are cut when others need it."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from serving.core.errors import Exhausted
from serving.resources.request_memory import CLIENTS, ConnectionMemory, RequestMemory, slot_of
from serving.workers.link.shared_page import SharedPage, SharedRequestMemory
from tests.serving.frontends.http2.http2_peer import Peer, framed, window_update
from tests.serving.frontends.raw_http import RawClient, samples
from tests.support.model_factory import onnx_identity, python_model, tensors_text
from tests.support.serving_process import ServerProcess, descendants, wait_until

pytestmark = pytest.mark.long
KB, MB = 1 << 10, 1 << 20
LIMIT = 32 * MB
ELSEWHERE = "127.0.0.2"
VALUES = np.ones((1, MB), np.uint8)
ANSWERED = 'nv_inference_request_success{model="blow_up",version="1"}'
BLOW_UP = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            sizes = [int(request.inputs()[0].as_numpy()[0, 0]) for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.ones((1, n), np.uint8))]) for n in sizes]
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "workers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository: Path = tmp_path_factory.mktemp("unread")
    onnx_identity(repository, "identity", "UINT8", extra="instance_group { count: 1 kind: KIND_CPU }")
    tensors = tensors_text("input", [("INPUT0", "INT32", [1])]) + tensors_text("output", [("OUTPUT0", "UINT8", [-1])])
    python_model(repository, "blow_up", BLOW_UP, f'name: "blow_up" backend: "python" max_batch_size: 1 {tensors}')
    flags = (f"--request-memory-limit={LIMIT}", f"--frontend-workers={request.param}")
    with ServerProcess(repository, *flags) as process:
        yield process
        assert "Traceback" not in process.log


def ask(server: ServerProcess) -> None:
    """One request of a stock client; it raises where it is not answered."""
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        tensor = tritonclient.grpc.InferInput("INPUT0", VALUES.shape, "UINT8").set_data_from_numpy(VALUES)
        assert client.infer("identity", [tensor]).as_numpy("OUTPUT0").size == VALUES.size


def is_answered(server: ServerProcess) -> bool:
    try:
        ask(server)
    except InferenceServerException:
        return False
    return True


def identity(size: int) -> bytes:
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(size)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[1, size])
    return framed(request.SerializeToString())


def blow_up(size: int) -> bytes:
    request = pb.ModelInferRequest(model_name="blow_up", raw_input_contents=[size.to_bytes(4, "little")])
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    return framed(request.SerializeToString())


def memory_of_all(server: ServerProcess) -> int:
    """Bytes of the server with the processes of its models, in whose shared memory answers may lie."""
    return sum(psutil.Process(pid).memory_info().rss for pid in {server.pid} | descendants(server.pid))


class Hoarders:
    """Connections whose calls are answered and not read."""

    def __init__(self, server: ServerProcess, body: bytes, source: str, connections: int, calls: int) -> None:
        self._stack = ExitStack()
        self.peers = [
            self._stack.enter_context(Peer(server.grpc, source=source, initial_window_size=0))
            for _ in range(connections)
        ]
        self.calls = calls
        for peer in self.peers:
            for number in range(calls):
                peer.open(2 * number + 1, "ModelInfer")
                peer.data(2 * number + 1, body)

    def __enter__(self) -> "Hoarders":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def nibble(self) -> None:
        """Take one byte of each answer."""
        for peer in self.peers:
            with suppress(OSError):  # it has been cut off
                peer.send(b"".join(window_update(2 * number + 1, 1) for number in range(self.calls)))


def test_others_are_answered_at_once_while_one_address_reads_nothing(server: ServerProcess) -> None:
    with Hoarders(server, identity(16 * KB), ELSEWHERE, connections=30, calls=100):  # 48 MB
        for _ in range(20):
            ask(server)


def test_a_client_that_takes_a_byte_now_and_then_is_cut_when_others_need_the_room(server: ServerProcess) -> None:
    with Hoarders(server, identity(16 * KB), "", connections=30, calls=100) as hoarders:

        def make_room() -> bool:
            hoarders.nibble()
            time.sleep(1)  # more often would be a flood of updates, which ends a connection too
            return is_answered(server)

        wait_until(make_room, what="room for a client of the same address")
        for _ in range(5):
            ask(server)


def test_large_answers_of_small_requests_are_counted(server: ServerProcess) -> None:
    before = memory_of_all(server)
    answered = samples(server).get(ANSWERED, 0)
    with Hoarders(server, blow_up(2 * MB), ELSEWHERE, connections=10, calls=20):  # 400 MB
        wait_until(lambda: samples(server)[ANSWERED] == answered + 200, what="all answers of the model")
        ask(server)
        # Those on their way are more for a moment, and with workers each lies in several places. What is freed of that stays
        # with the process; 400 MB would be there twice.
        wait_until(lambda: memory_of_all(server) - before < 8 * LIMIT, what="no more than the limit's answers")
    wait_until(lambda: is_answered(server), what="room after they left")


def test_http_clients_that_do_not_read_are_cut_when_others_need_the_room(server: ServerProcess) -> None:
    size = {"binary_data_size": MB}
    tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [1, MB], "parameters": size}
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        "POST /v2/models/identity/infer HTTP/1.1\r\nHost: test\r\n"
        f"Inference-Header-Content-Length: {len(body)}\r\nContent-Length: {len(body) + MB}\r\n\r\n"
    )
    request = head.encode() + body + bytes(MB)
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(RawClient(server.http, receive_buffer=4 * KB, source=ELSEWHERE))
            client.socket.settimeout(1)
            threading.Thread(target=_send, args=(client, request * 16), daemon=True).start()
        for _ in range(20):
            ask(server)


def _send(client: RawClient, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        pass  # it is not read any more, as it does not read


def test_an_address_alone_may_hold_nearly_all_and_leaves_room_for_others() -> None:
    memory = RequestMemory(90)
    greedy = [ConnectionMemory(memory, ELSEWHERE) for _ in range(30)]
    held = 0
    for one in greedy * 10:
        try:
            one.take(1)
        except Exhausted:
            continue
        held += 1
    assert held == 80
    assert memory.short
    assert greedy[0].must_make_room
    modest = ConnectionMemory(memory, "127.0.0.1")
    modest.take(5)
    assert not modest.must_make_room
    for one in greedy:
        one.give(one.held)
    modest.give(5)
    assert (memory.taken, memory.clients()) == (0, 0)


def test_a_connection_alone_may_hold_four_fifths() -> None:
    one = ConnectionMemory(RequestMemory(100), "")
    one.take(80)
    with pytest.raises(Exhausted):
        one.take(1)


def test_memory_that_another_process_took_first_is_refused_and_not_counted() -> None:
    class Raced(RequestMemory):
        def take(self, size: int) -> None:
            raise self.exhausted()

    memory = Raced(MB)
    held = ConnectionMemory(memory, ELSEWHERE)
    with pytest.raises(Exhausted):
        held.take(KB)
    assert (held.held, memory.of_client(slot_of(ELSEWHERE)), memory.clients()) == (0, 0, 0)


def test_an_address_has_one_bound_in_all_processes() -> None:
    page, _ = SharedPage.create(2)
    memories = [SharedRequestMemory(90, page, number) for number in range(3)]
    mine = [ConnectionMemory(memory, ELSEWHERE) for memory in memories]
    for one in mine[1:]:
        one.take(40)
    with pytest.raises(Exhausted):
        mine[1].take(1)
    assert all(one.must_make_room for one in mine), "each process hears of it"
    page.forget(2)
    mine[1].take(1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
def test_neighbours_of_an_ipv6_address_are_one_client(one: str, other: str, same: bool) -> None:
    assert (slot_of(one) == slot_of(other)) is same
    assert 0 <= slot_of(one) < CLIENTS
