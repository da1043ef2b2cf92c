"""A handler for TorchServe: the requests that the frontend has gathered go through the model as one batch."""

from typing import Any

import numpy as np
from mlp import Mlp


class MlpHandler:
    def initialize(self, context: Any) -> None:
        self._mlp = Mlp()

    def handle(self, requests: list[dict[str, Any]], context: Any) -> list[dict[str, list[float]]]:
        rows = np.array([request["body"]["features"] for request in requests], np.float32)
        return [{"output": row} for row in self._mlp(rows).tolist()]
