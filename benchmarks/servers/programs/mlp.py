"""The model that every peer serves, in ONNX Runtime with one thread, and the limits for the batches of all peers."""

import os

import numpy as np
import onnxruntime

PORT = int(os.environ.get("PORT", "0"))
WORKERS = int(os.environ.get("WORKERS", "1"))
MAX_BATCH_SIZE = 64
MAX_DELAY_S = 0.001  # how long a request waits for others to join its batch, in peers that have this setting


class Mlp:
    """The model: 512 numbers in, 10 numbers out."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the outputs, FP32 [n, 10], for rows of FP32 [n, 512]."""
        return self._session.run(None, {"input": rows})[0]
