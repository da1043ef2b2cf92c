"""Queue delays shorter than the event loop's clock: every request is answered all the same."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess


@pytest.mark.parametrize("delay_us", [1, 400, 1500])
def test_requests_of_several_clients_are_answered_under_any_delay(tmp_path: Path, delay_us: int) -> None:
    delay = (
        f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }} instance_group {{ kind: KIND_CPU count: 2 }}"
    )
    model_factory.onnx_scale(tmp_path, factor=3.0, extra=delay)

    def client(address: str, number: int) -> None:
        wire = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
        wire.set_data_from_numpy(np.array([[number]], np.float32))
        with grpcclient.InferenceServerClient(address) as one:
            for _ in range(50):
                answer = one.infer("scale", [wire], client_timeout=PATIENCE_S).as_numpy("OUTPUT0")
                assert answer.tolist() == [[3.0 * number]]

    with ServerProcess(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(client, server.grpc, number) for number in range(4)]:
            done.result(2 * PATIENCE_S)
