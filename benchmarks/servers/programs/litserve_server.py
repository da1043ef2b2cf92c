"""LitServe with its own batching, and with an HTTP process and an inference process for each worker."""

from typing import Any

import litserve
import numpy as np
from mlp import MAX_BATCH_SIZE, MAX_DELAY_S, PORT, WORKERS, Mlp


class MlpApi(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._mlp = Mlp()

    def decode_request(self, request: dict[str, Any], **_: Any) -> np.ndarray:
        return np.array(request["features"], np.float32)

    def predict(self, rows: np.ndarray, **_: Any) -> np.ndarray:
        return self._mlp(rows)

    def encode_response(self, output: np.ndarray, **_: Any) -> dict[str, list[float]]:
        return {"output": output.tolist()}


if __name__ == "__main__":
    api = MlpApi(max_batch_size=MAX_BATCH_SIZE, batch_timeout=MAX_DELAY_S)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=WORKERS, fast_queue=True)
    server.run("127.0.0.1", PORT, num_api_servers=WORKERS, log_level="warning", generate_client_file=False)
