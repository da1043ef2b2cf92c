"""A decoupled backend: IN (INT32 [1]) says how many responses a request gets, its parameters how.

size: bytes of each response; fail_at: after so many an error ends it; end: "alone" sends the end without a response;
wait: keep open until `gate` is set; every_ms: the time between two responses. `started`, `sent` and `cancelled` count
requests, responses and requests that saw that they were cancelled.
"""

import threading
import time
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.backends import KINDS, BackendKind, ModelFormat
from serving.backends.base.backend import Backend, BackendInstance, BlockingInstance
from serving.core.batch import Batch
from serving.core.devices import Device
from serving.core.errors import invalid
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from tests.support.model_factory import write_config
from tests.support.serving_process import PATIENCE_S

KINDS["streaming"] = BackendKind(
    "streaming", "tests.serving.streaming_backend:StreamingBackend", (ModelFormat("streaming", "none"),)
)
CONFIG = """name: "{name}" backend: "{backend}" max_batch_size: 0 {settings}
input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_UINT8 dims: -1 }}
model_transaction_policy {{ decoupled: {decoupled} }}
"""


def streaming_model(repository: Path, name: str = "streaming", decoupled: bool = True, instances: int = 4) -> None:
    settings = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    write_config(
        repository / name,
        CONFIG.format(name=name, backend="streaming", decoupled=str(decoupled).lower(), settings=settings),
    )
    (repository / name / "1").mkdir()
    (repository / name / "1" / KINDS["streaming"].filename).touch()


class StreamingBackend(Backend):
    gate = threading.Event()
    started = 0
    sent = 0
    cancelled = 0

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        return

    def create_instance(self, device: Device, name: str) -> BackendInstance:
        return _Instance(device)


class _Instance(BlockingInstance):
    def execute(self, batch: Batch) -> None:
        for request in batch.requests:
            self._answer(batch, request)

    def _answer(self, batch: Batch, request: InFlightRequest) -> None:
        StreamingBackend.started += 1
        wanted = request.asked.parameters
        count = int(request.inputs["IN"][0])
        alone = wanted.get("end") == "alone" or not count
        for number in range(count):
            if request.cancelled:
                StreamingBackend.cancelled += 1
                return
            if number == wanted.get("fail_at"):
                batch.send(request, invalid(f"failed at {number}"), True)
                return
            out = np.full(int(wanted.get("size", 1)), number % 256, np.uint8)
            if number:
                time.sleep(int(wanted.get("every_ms", 0)) / 1000)
            StreamingBackend.sent += 1
            final = number == count - 1 and not alone
            batch.send(request, InferenceResponse(request.asked.model_name, 1, request.asked.id, {"OUT": out}), final)
        if wanted.get("wait"):
            assert StreamingBackend.gate.wait(PATIENCE_S), "the test never opened the gate"
        if alone:
            batch.send(request, None, True)
