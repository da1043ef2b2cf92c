"""A BentoML service with adaptive batching."""

from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType, Shape
from mlp import MAX_BATCH_SIZE, WORKERS, Mlp

Rows = Annotated[np.ndarray, DType("float32"), Shape((-1, 512))]


@bentoml.service(workers=WORKERS, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class MlpService:
    def __init__(self) -> None:
        self._mlp = Mlp()

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH_SIZE, max_latency_ms=1000)
    def predict(self, features: Rows) -> np.ndarray:
        return self._mlp(features)
