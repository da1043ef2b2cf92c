"""Ray Serve with a replica for each worker, and batches of `serve.batch`."""

import signal

import numpy as np
import ray
from mlp import MAX_BATCH_SIZE, MAX_DELAY_S, PORT, WORKERS, Mlp
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request


@serve.deployment(num_replicas=WORKERS, max_ongoing_requests=1000)
class MlpDeployment:
    def __init__(self) -> None:
        self._mlp = Mlp()

    @serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=MAX_DELAY_S)
    async def predict(self, rows: list[np.ndarray]) -> list[list[float]]:
        return self._mlp(np.stack(rows)).tolist()

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        body = await request.json()
        return {"output": await self.predict(np.array(body["features"], np.float32))}


if __name__ == "__main__":
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, _system_config=None)
    serve.start(
        http_options={"host": "127.0.0.1", "port": PORT},
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    serve.run(MlpDeployment.bind(), route_prefix="/predict")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
