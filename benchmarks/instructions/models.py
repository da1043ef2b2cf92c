"""The models that get the requests. They compute almost nothing, so that mainly the instructions of the server are counted.

Dynamic batches always have 16 requests, because a batcher waits for them for up to a minute.
"""

from pathlib import Path

import numpy as np

from tests.support import torchserve_archives
from tests.support.model_factory import onnx_add_sub, pass_on_ensemble, python_model, tensors_text

BATCH = 16
ELEMENTS = 16
ONE_INSTANCE = """
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "inter_op_thread_count" value { string_value: "1" } }
"""
BATCHING = f"dynamic_batching {{ preferred_batch_size: [{BATCH}] max_queue_delay_microseconds: 60000000 }}"
IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
                ])
                for request in requests
            ]
"""
VALUES = np.arange(ELEMENTS)
TWO_INPUTS = {"INPUT0": VALUES.astype(np.int32), "INPUT1": VALUES.astype(np.int32)}
ONE_INPUT = {"INPUT0": VALUES.astype(np.float32)}
INPUTS = {  # the input of each model, without the batch dimension
    "plain": TWO_INPUTS,
    "batched": TWO_INPUTS,
    "python": ONE_INPUT,
    "python_batched": ONE_INPUT,
    "ensemble": ONE_INPUT,
    "handler": ONE_INPUT,
    "handler_batched": ONE_INPUT,
}


def write_models(repository: Path) -> None:
    onnx_add_sub(repository, "plain", "INT32", [ELEMENTS], extra=ONE_INSTANCE)
    onnx_add_sub(repository, "batched", "INT32", [ELEMENTS], max_batch_size=BATCH, extra=ONE_INSTANCE + BATCHING)
    _identity(repository, "python", "")
    _identity(repository, "python_batched", BATCHING)
    pass_on_ensemble(repository, "ensemble", "python")
    torchserve_archives.model(repository, "handler")
    batching = {"batchSize": BATCH, "maxBatchDelay": 60_000}
    torchserve_archives.model(repository, "handler_batched", config=batching)


def _identity(repository: Path, name: str, batching: str) -> None:
    tensors = [tensors_text(kind, [(f"{kind.upper()}0", "FP32", [ELEMENTS])]) for kind in ("input", "output")]
    config = f'name: "{name}" backend: "python" max_batch_size: {BATCH} {" ".join(tensors)} {batching}'
    python_model(repository, name, IDENTITY, f"{config} instance_group [ {{ count: 1 kind: KIND_CPU }} ]")
