"""gRPC's connections with the stock client: keepalive of both sides, their age, large messages, deadlines, cancellation."""

import queue
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import Stream, client_of, pending_requests
from tests.e2e.gated_model import GatedModel
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
LIMIT = 1 << 20
AGE_MS = 100
FLAGS = (
    "--grpc-keepalive-time=20",
    "--grpc-keepalive-timeout=60000",
    "--grpc-keepalive-permit-without-calls=true",
    "--grpc-http2-max-pings-without-data=0",
    "--grpc-http2-min-recv-ping-interval-without-data=1",
    "--grpc-http2-max-ping-strikes=0",
    f"--grpc-max-connection-age={AGE_MS}",
    "--grpc-max-connection-age-grace=600000",
    f"--grpc-max-message-size={LIMIT}",
)
BUSY = "instance_group { count: 1 kind: KIND_CPU }"


class Setting(NamedTuple):
    server: ServerProcess
    gated: GatedModel


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository)
    gated = GatedModel(repository, tmp_path_factory.mktemp("gate"), extra=BUSY)
    with ServerProcess(repository, *FLAGS) as server:
        yield Setting(server, gated)
        assert "Traceback" not in server.log


@pytest.fixture
def client(setting: Setting) -> Iterator[TritonClient]:
    with client_of(setting.server, "grpc") as client:
        yield client


@pytest.fixture
def waiting(setting: Setting, client: TritonClient) -> Iterator["queue.Queue[Any]"]:
    """The one instance is busy with request "first"; its answer comes here once the gate is open."""
    answers: queue.Queue[Any] = queue.Queue()
    client.client.async_infer(
        "gated", client.tensors(ONE), lambda result, error: answers.put((result, error)), request_id="first"
    )
    setting.gated.wait_for("first")
    yield answers
    setting.gated.open()
    wait_until(lambda: pending_requests(setting.server, "gated") == 0, what="an empty queue")
    setting.gated.shut()


def requests_for(client: TritonClient, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert client.infer("identity", ONE).outputs["OUTPUT0"].tolist() == [[1]]


def test_a_client_may_ping_and_is_pinged_while_it_waits(setting: Setting, waiting: "queue.Queue[Any]") -> None:
    """The server pings each 20 ms, and closes a connection that is older than 100 ms when its calls have ended."""
    pinging = triton.KeepAliveOptions(20, 60_000, True, 0)
    with triton.InferenceServerClient(setting.server.grpc, keepalive_options=pinging) as second:
        answers: queue.Queue[Any] = queue.Queue()
        tensor = triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(ONE["INPUT0"])
        second.async_infer("gated", [tensor], lambda result, error: answers.put((result, error)), request_id="second")
        wait_until(lambda: pending_requests(setting.server, "gated") == 1, what="the second request")
        with client_of(setting.server, "grpc") as other:
            requests_for(other, 4 * AGE_MS / 1000)
        setting.gated.open()
        for answered, name in ((waiting, "first"), (answers, "second")):
            result, error = answered.get(timeout=PATIENCE_S)
            assert error is None
            assert result.get_response().id == name


def test_a_client_does_not_notice_that_old_connections_are_let_go(client: TritonClient) -> None:
    requests_for(client, 4 * AGE_MS / 1000)


def test_a_message_over_the_limit_is_refused_and_the_next_is_taken(client: TritonClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("identity", {"INPUT0": np.zeros((1, LIMIT), np.float32)})
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert str(LIMIT) in caught.value.message()
    assert client.infer("identity", ONE).outputs["OUTPUT0"].tolist() == [[1]]


def test_a_deadline_ends_a_call_that_waits(setting: Setting, client: TritonClient, waiting: "queue.Queue[Any]") -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("gated", ONE, request_id="late", client_timeout=0.1)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until(lambda: pending_requests(setting.server, "gated") == 0, what="its leaving the queue")
    setting.gated.open()
    assert waiting.get(timeout=PATIENCE_S)[1] is None
    assert setting.gated.began() == ["first"]


def test_a_call_and_a_stream_are_cancelled(setting: Setting, client: TritonClient, waiting: "queue.Queue[Any]") -> None:
    answers: queue.Queue[Any] = queue.Queue()
    call = client.client.async_infer(
        "gated", client.tensors(ONE), lambda result, error: answers.put((result, error)), request_id="call"
    )
    stream = Stream(client)
    stream.send("gated", ONE, request_id="stream")
    wait_until(lambda: pending_requests(setting.server, "gated") == 2, what="both in the queue")
    call.cancel()
    client.client.stop_stream(cancel_requests=True)
    wait_until(lambda: pending_requests(setting.server, "gated") == 0, what="their leaving the queue")
    assert answers.get(timeout=PATIENCE_S)[1].status() == "StatusCode.CANCELLED"
    setting.gated.open()
    assert waiting.get(timeout=PATIENCE_S)[1] is None
    assert setting.gated.began() == ["first"]
