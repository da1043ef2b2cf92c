"""Sends requests without a pause while their model is reloaded and its instance count changes: no request may fail.

    python -m benchmarks.soak_reload --requests 200000 --clients 32 --reloads 50 --instance-changes 20

Half of the clients speak HTTP, half gRPC, all with the stock tritonclient. Every answer is checked: it must be an answer of a
model that was published at some time. The exit status is 1 if a request fails or a change has no visible effect.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio

from tests.support.model_factory import onnx_scale, python_scale
from tests.support.serving_process import ServerProcess

MODEL = "scale"
WRITERS = {"onnxruntime": onnx_scale, "python": python_scale}
EXTRA = "instance_group {{ count: {count} kind: KIND_CPU }} dynamic_batching {{ }}"


@dataclass
class Outcome:
    """seconds: wall time. latencies: the seconds of each successful request. failures: message -> how often it occurred."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    reloads: int = 0
    instance_changes: int = 0
    factors: Counter[float] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.latencies) + sum(self.failures.values())

    def describe(self) -> str:
        latencies = np.array(self.latencies or [0.0]) * 1000
        p50, p99 = np.percentile(latencies, [50, 99])
        return (
            f"{self.answered} requests in {self.seconds:.1f} s ({self.answered / self.seconds:.0f}/s), "
            f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {latencies.max():.1f} ms; {self.reloads} reloads "
            f"({len(self.factors)} models answered), {self.instance_changes} changes of the instance count; "
            f"{sum(self.failures.values())} failures {dict(self.failures.most_common(5))}"
        )


class Soak:
    """One run against a server in explicit mode, with a repository that this program writes."""

    def __init__(
        self, server: ServerProcess, repository: Path, backend: str, requests: int, reloads: int, changes: int
    ) -> None:
        self._server = server
        self._repository = repository
        self._write = WRITERS[backend]
        self._requests = requests
        self._reloads = reloads
        self._changes = changes
        self.outcome = Outcome()
        self._stop = asyncio.Event()
        self._factor = 1.0
        self._count = 1

    async def run(self, clients: int) -> Outcome:
        start = time.monotonic()
        workers = [
            asyncio.create_task(self._http_client() if number % 2 else self._grpc_client()) for number in range(clients)
        ]
        changes = [asyncio.create_task(self._reload()), asyncio.create_task(self._change_instances())]
        try:
            await asyncio.gather(*changes)
            await self._reached(self._requests)
        finally:
            self._stop.set()
            await asyncio.gather(*workers, *changes)
        self.outcome.seconds = time.monotonic() - start
        await self._check_final_state()
        return self.outcome

    # -- load ------------------------------------------------------------------------------------------------------
    async def _http_client(self) -> None:
        wire = tritonclient.http.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
        async with tritonclient.http.aio.InferenceServerClient(self._server.http) as client:
            await self._infer(lambda: client.infer(MODEL, [wire]))

    async def _grpc_client(self) -> None:
        wire = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
        async with tritonclient.grpc.aio.InferenceServerClient(self._server.grpc) as client:
            await self._infer(lambda: client.infer(MODEL, [wire]))

    async def _infer(self, infer: Callable[[], Awaitable[Any]]) -> None:
        outcome = self.outcome
        while not self._stop.is_set():
            start = time.monotonic()
            try:
                result = await infer()
            except Exception as error:
                outcome.failures[f"{type(error).__name__}: {error}"] += 1
                await asyncio.sleep(0.01)
                continue
            outcome.latencies.append(time.monotonic() - start)
            outcome.factors[float(result.as_numpy("OUTPUT0")[0, 0])] += 1

    # -- changes ---------------------------------------------------------------------------------------------------
    async def _reload(self) -> None:
        """Publish the same version with another factor, at regular intervals over the run.

        After each reload, answers must use the new factor.
        """
        for number in range(self._reloads):
            await self._reached(self._requests * (number + 1) // (self._reloads + 2))
            self._factor = number + 2.0
            self._publish(self._factor, EXTRA.format(count=self._count), "1")
            await self._load()
            self.outcome.reloads += 1

    async def _change_instances(self) -> None:
        for number in range(self._changes):
            await self._reached(self._requests * (number + 1) // (self._changes + 2))
            self._count = 1 + (number + 1) % 3
            self._publish(self._factor, EXTRA.format(count=self._count), ".")
            await self._load()
            self.outcome.instance_changes += 1

    def _publish(self, factor: float, extra: str, part: str) -> None:
        """Replace the files in the folder of the version ("1") or of the model (".") by new files, each in one step."""
        staging = self._repository.parent / "staging"
        self._write(staging, MODEL, factor, extra=extra)
        for path in (staging / MODEL / part).iterdir():
            if path.is_file():
                os.replace(path, self._repository / MODEL / part / path.name)

    async def _load(self) -> None:
        url = f"{self._server.http_url}/v2/repository/models/{MODEL}/load"
        async with aiohttp.ClientSession() as session, session.post(url, json={}) as response:
            if response.status != 200:
                self.outcome.problems.append(f"load answered {response.status}: {await response.text()}")

    async def _reached(self, requests: int) -> None:
        while self.outcome.answered < requests:
            await asyncio.sleep(0.005)

    async def _check_final_state(self) -> None:
        """Check that the model published last answers, with the last instance count."""
        async with tritonclient.http.aio.InferenceServerClient(self._server.http) as client:
            wire = tritonclient.http.InferInput("INPUT0", [1, 1], "FP32")
            wire.set_data_from_numpy(np.ones((1, 1), np.float32))
            factor = float((await client.infer(MODEL, [wire])).as_numpy("OUTPUT0")[0, 0])
            count = (await client.get_model_config(MODEL))["instance_group"][0]["count"]
        if (factor, count) != (self._factor, self._count):
            self.outcome.problems.append(
                f"factor {factor} and {count} instances answer, but {self._factor} and {self._count} were loaded last"
            )
        unknown = set(self.outcome.factors) - {number + 1.0 for number in range(self._reloads + 1)}
        if unknown:
            self.outcome.problems.append(f"answers of no model that was ever published: {sorted(unknown)}")


def soak(
    folder: Path, requests: int, clients: int, reloads: int, instance_changes: int, backend: str = "onnxruntime"
) -> Outcome:
    """Write the model below `folder`, start a server for it, run the soak, and stop the server."""
    repository = folder / "models"
    WRITERS[backend](repository, MODEL, 1.0, extra=EXTRA.format(count=1))
    with ServerProcess(repository, "--model-control-mode=explicit", f"--load-model={MODEL}") as server:
        outcome = asyncio.run(Soak(server, repository, backend, requests, reloads, instance_changes).run(clients))
        status, statistics = server.get(f"/v2/models/{MODEL}/stats")
        counts = statistics["model_stats"][0]["inference_stats"] if status == 200 else {}
        if counts.get("fail", {}).get("count") != 0:
            outcome.problems.append(f"the server counted failures: {json.dumps(counts.get('fail'))}")
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--reloads", type=int, default=50)
    parser.add_argument("--instance-changes", type=int, default=20)
    parser.add_argument("--backend", choices=WRITERS, default="onnxruntime")
    options = vars(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="slipway-soak-") as folder:
        outcome = soak(Path(folder), **options)
    print(outcome.describe())
    for problem in outcome.problems:
        print(problem)
    return 1 if outcome.failures or outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
