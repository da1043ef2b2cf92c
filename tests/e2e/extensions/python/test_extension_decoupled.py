"""Decoupled models through ModelStreamInfer with the stock client: any number of responses, and their end."""

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import refused
from tests.serving.frontends.frontends_in_thread import Frontends, frontends
from tests.serving.frontends.http2.http2_peer import DATA, RST_STREAM, Peer, frame, framed
from tests.serving.streaming_backend import CONFIG, StreamingBackend, streaming_model
from tests.support.model_factory import onnx_scale, python_model
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontends]:
    repository = tmp_path_factory.mktemp("models")
    streaming_model(repository)
    onnx_scale(repository, "scale", 3.0)
    with frontends(repository) as running:
        yield running


@pytest.fixture(autouse=True)
def _counters() -> None:
    """Begin at 0. A request that the test before has refused may be about to run even so: its counts come on top."""
    StreamingBackend.gate.clear()
    StreamingBackend.started = StreamingBackend.sent = StreamingBackend.cancelled = 0


class Stream:
    """The stock client's stream; `next` gives an InferResult, or raises the error of the stream."""

    def __init__(self, client: triton.InferenceServerClient, **options: Any) -> None:
        self.client = client
        self.answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self.answers.put((result, error)), **options)

    def send(self, count: int, model: str = "streaming", **options: Any) -> None:
        array = np.array([count], np.int32)
        tensor = triton.InferInput("IN", [1], "INT32").set_data_from_numpy(array)
        self.client.async_stream_infer(model, [tensor], **options)

    def scale(self, value: float, **options: Any) -> None:
        tensor = triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.array([[value]], np.float32))
        self.client.async_stream_infer("scale", [tensor], **options)

    def next(self) -> Any:
        result, error = self.answers.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return result.get_response()

    def until_final(self) -> list[Any]:
        found = [self.next()]
        while not found[-1].parameters["triton_final_response"].bool_param:
            found.append(self.next())
        return found


@contextlib.contextmanager
def opened(server: Frontends, **options: Any) -> Iterator[Stream]:
    client = triton.InferenceServerClient(server.grpc)
    try:
        stream = Stream(client, **options)
        yield stream
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()


def test_many_responses_come_and_the_last_says_so(server: Frontends) -> None:
    with opened(server) as stream:
        stream.send(5, request_id="mine")
        found = stream.until_final()
    assert [bytes(one.raw_output_contents[0]) for one in found] == [bytes([number]) for number in range(5)]
    assert [one.parameters["triton_final_response"].bool_param for one in found] == [False] * 4 + [True]
    assert {(one.id, one.model_name, one.model_version) for one in found} == {("mine", "streaming", "1")}


def test_an_end_without_a_response_is_sent_only_to_clients_that_ask_for_it(server: Frontends) -> None:
    with opened(server) as stream:
        stream.send(0, request_id="silent")
        stream.send(2, request_id="open", parameters={"end": "alone"})
        assert [stream.next().id, stream.next().id] == ["open", "open"]
        stream.send(0, request_id="told", enable_empty_final_response=True)
        last = stream.next()
        assert (last.id, last.model_name, len(last.outputs)) == ("told", "streaming", 0)
        assert last.parameters["triton_final_response"].bool_param
        stream.send(2, request_id="both", parameters={"end": "alone"}, enable_empty_final_response=True)
        found = stream.until_final()
        assert [len(one.outputs) for one in found] == [1, 1, 0]


def test_an_error_comes_inside_the_stream_with_its_id(server: Frontends) -> None:
    with opened(server) as stream:
        stream.send(5, request_id="bad", parameters={"fail_at": 2})
        assert [stream.next().id, stream.next().id] == ["bad", "bad"]
        with pytest.raises(InferenceServerException) as caught:
            stream.next()
        assert "failed at 2" in caught.value.message()
        stream.send(1, request_id="after")
        assert stream.next().id == "after"


def test_a_client_may_ask_for_errors_as_the_streams_status(server: Frontends) -> None:
    with opened(server, headers={"triton_grpc_error": "true"}) as stream:
        stream.send(5, parameters={"fail_at": 0})
        with pytest.raises(InferenceServerException) as caught:
            stream.next()
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_request_that_stays_open_does_not_hold_up_others(server: Frontends) -> None:
    with opened(server) as stream:
        stream.send(1, request_id="open", parameters={"end": "alone", "wait": True}, enable_empty_final_response=True)
        assert stream.next().id == "open"
        stream.send(2, request_id="second")
        assert [one.id for one in stream.until_final()] == ["second"] * 2
        stream.scale(2.0, request_id="plain")
        plain = stream.next()
        assert (plain.id, plain.parameters["triton_final_response"].bool_param) == ("plain", True)
        StreamingBackend.gate.set()
        assert stream.until_final()[-1].id == "open"


def test_the_final_flag_is_not_for_the_model_and_must_be_a_boolean(server: Frontends) -> None:
    with opened(server) as stream:
        stream.send(1, parameters={"size": 3})
        assert len(stream.next().raw_output_contents[0]) == 3
    with Peer(server.grpc) as peer:
        from tritonclient.grpc import service_pb2 as pb

        message = pb.ModelInferRequest(model_name="streaming", raw_input_contents=[bytes(4)])
        message.inputs.add(name="IN", datatype="INT32", shape=[1])
        message.parameters["triton_enable_empty_final_response"].int64_param = 1
        answer = peer.call(1, "ModelInfer", message)
        assert answer.status == 3
        assert "expected bool_param" in answer.headers["grpc-message"]


def test_unary_calls_refuse_decoupled_models(server: Frontends) -> None:
    for kind, address in (("http", server.http), ("grpc", server.grpc)):
        client = TritonClient(kind, address)
        inputs = client.tensors({"IN": np.array([1], np.int32)})
        message = refused(client, "UNSUPPORTED", client.call, "infer", "streaming", inputs)
        assert "doesn't support models with decoupled transaction policy" in message
        client.close()


def test_a_client_that_stops_reading_bounds_what_the_model_sends(server: Frontends) -> None:
    from tritonclient.grpc import service_pb2 as pb

    message = pb.ModelInferRequest(model_name="streaming", raw_input_contents=[(200).to_bytes(4, "little")])
    message.inputs.add(name="IN", datatype="INT32", shape=[1])
    message.parameters["size"].int64_param = 1 << 20
    with Peer(server.grpc, initial_window_size=1 << 16) as peer:
        peer.open(1, "ModelStreamInfer")
        peer.data(1, framed(message.SerializeToString()), end=False)
        peer.next(DATA)
        # 16 MiB may be ahead of the client, and one more is let through
        wait_until(lambda: StreamingBackend.sent >= 17, what="the model's first responses")
        with Peer(server.grpc) as other:
            assert other.is_served(1)
        assert StreamingBackend.sent <= 19
        peer.send(frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
        wait_until(lambda: StreamingBackend.cancelled >= 1, what="the end of the request")
        assert StreamingBackend.sent <= 20


def test_ending_the_stream_cancels_its_requests(server: Frontends) -> None:
    with opened(server) as stream:
        stream.send(1_000_000)
        stream.send(1_000_000)
        stream.next()
        wait_until(lambda: StreamingBackend.started >= 2, what="both requests to run")
    wait_until(lambda: StreamingBackend.cancelled >= 2, what="both requests to notice")


def test_a_decoupled_python_model_streams(tmp_path: Path) -> None:
    source = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
                    for number in range(count):
                        out = pb_utils.Tensor("OUT", np.array([number], np.uint8))
                        sender.send(pb_utils.InferenceResponse([out]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    config = CONFIG.format(name="streaming", backend="python", decoupled="true", settings="")
    python_model(tmp_path, "streaming", source, config)
    with ServerProcess(tmp_path) as server, opened(server) as stream:  # type: ignore[arg-type]
        stream.send(3, request_id="a", enable_empty_final_response=True)
        found = stream.until_final()
        assert [one.raw_output_contents[0][0] for one in found[:-1]] == [0, 1, 2]
        assert not found[-1].outputs
