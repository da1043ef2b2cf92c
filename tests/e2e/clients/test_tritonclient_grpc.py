"""The stock gRPC client."""

import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.clients.tritonclient_suite import ONE, TritonclientSuite
from tests.support.serving_process import PATIENCE_S, ServerProcess


class TestTritonclientGrpc(TritonclientSuite):
    kind = "grpc"

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    @pytest.mark.parametrize("elements", [10, 1_000_000])
    def test_requests_may_be_compressed(self, client: TritonClient, algorithm: str, elements: int) -> None:
        array = (np.arange(elements, dtype=np.float32) % 100).reshape(1, elements)
        answer = client.infer("identity_fp32", {"INPUT0": array}, compression_algorithm=algorithm)
        assert np.array_equal(answer.outputs["OUTPUT0"], array)

    def test_a_large_tensor_passes_both_ways(self, client: TritonClient) -> None:
        array = np.random.default_rng(0).random((1, 16 << 20), np.float32)
        assert np.array_equal(client.infer("identity_fp32", {"INPUT0": array}).outputs["OUTPUT0"], array)

    def test_a_clients_own_timeout_ends_its_call(self, client: TritonClient) -> None:
        many = {"INPUT0": np.zeros((8, 1), np.float32)}
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", many, client_timeout=0.001)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert client.infer("slow", ONE, client_timeout=PATIENCE_S).outputs

    def test_keepalive_pings_keep_the_connection(self, server: ServerProcess) -> None:
        options = triton.KeepAliveOptions(100, 60_000, True, 0)
        client = triton.InferenceServerClient(server.grpc, keepalive_options=options)
        try:
            inputs = [triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(ONE["INPUT0"])]
            for _ in range(50):
                assert client.infer("slow", inputs).as_numpy("OUTPUT0").tolist() == [[3]]
        finally:
            client.close()

    def test_many_channels_are_served_at_once(self, server: ServerProcess) -> None:
        clients = [
            triton.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(50)
        ]
        answers: queue.Queue[Any] = queue.Queue()
        inputs = [triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(ONE["INPUT0"])]
        for client in clients:
            client.async_infer("scale", inputs, lambda result, error: answers.put((result, error)))
        found = [answers.get(timeout=PATIENCE_S) for _ in clients]
        assert [result.as_numpy("OUTPUT0").tolist() for result, error in found if not error] == [[[9]]] * 50
        for client in clients:
            client.close()

    def test_a_stream_answers_in_order_and_tells_errors_inside(self, client: TritonClient) -> None:
        answers: queue.Queue[Any] = queue.Queue()
        stream = client.client
        stream.start_stream(lambda result, error: answers.put((result, error)))
        try:
            for number in range(20):
                tensors = client.tensors({"INPUT0": np.array([[number]], np.float32)})
                stream.async_stream_infer("scale" if number != 7 else "nope", tensors, request_id=str(number))
            found = [answers.get(timeout=PATIENCE_S) for _ in range(20)]
        finally:
            stream.stop_stream()
        assert [number for number, (_, error) in enumerate(found) if error] == [7]
        assert "nope" in found[7][1].message()
        values = [result.as_numpy("OUTPUT0").item() for result, error in found if not error]
        assert values == [number * 3 for number in range(20) if number != 7]
