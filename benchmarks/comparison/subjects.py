"""The servers to compare, each with the settings that its documentation recommends for production."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.comparison.encodings import FEATURES, Encoding, plain, v2
from benchmarks.folders import REPOSITORY
from benchmarks.servers import models, process
from benchmarks.servers.commands import (
    WORKERS,
    Command,
    bentoml_command,
    fastapi_command,
    mlserver_command,
    pinned,
    program_command,
    run_peer,
    torchserve_command,
)
from benchmarks.servers.process import Running
from dashboard.loads.requests import plain_json


@dataclass(frozen=True)
class Server:
    """A server to compare. settings: a description for the page. start: runs the server for a block."""

    name: str
    title: str
    settings: str
    encodings: Sequence[Encoding]
    start: Callable[[], AbstractContextManager[Running]]


def slipway(name: str, title: str, settings: str, model: str, encodings: Sequence[str], *flags: str) -> Server:
    def start() -> AbstractContextManager[Running]:
        return process.slipway(models.write(REPOSITORY, [model]), [model], flags)

    return Server(name, title, settings, v2(model, encodings), start)


def triton() -> Server:
    return Server(
        "triton",
        "Triton",
        "`tritonserver` with its ONNX Runtime backend; the same repository and configuration as Slipway.",
        v2("mlp"),
        lambda: process.triton(models.write(REPOSITORY, ["mlp"]), ["mlp"]),
    )


def peer(
    name: str,
    title: str,
    settings: str,
    encodings: Sequence[Encoding],
    command: Command,
    grpc: bool = False,
    environment: str = "",
) -> Server:
    """Return a server that runs in the environment of the same name, or in the environment `environment`."""
    environment = environment or name

    def start() -> AbstractContextManager[Running]:
        return run_peer(environment, command, encodings[0].request, grpc=grpc)

    return Server(name, f"{title} {pinned(environment)}", settings, encodings, start)


def all_servers(frontend_workers: int = 0) -> list[Server]:
    """Return every server: Slipway first, then its peers."""
    cores = f"{WORKERS} process{'es' if WORKERS > 1 else ''}"
    flags = [f"--frontend-workers={frontend_workers}"] if frontend_workers else []
    many = f", {flags[0]}" if flags else ""
    bentoml_json = plain_json("/predict", {"features": [FEATURES["features"]]})
    return [
        slipway(
            "slipway",
            "Slipway",
            f"one process{many}, one instance, `max_batch_size: 64`, `dynamic_batching {{ }}`.",
            "mlp",
            ("JSON", "binary", "gRPC"),
            *flags,
        ),
        slipway(
            "unbatched",
            "Slipway, batching off",
            "the same without `dynamic_batching`: each request runs alone.",
            "mlp_unbatched",
            ("binary",),
            *flags,
        ),
        triton(),
        peer(
            "torchserve",
            "TorchServe",
            f"a handler that runs the ONNX file; {WORKERS} workers, `batchSize` 64, `maxBatchDelay` 1 ms.",
            plain("/predictions/mlp"),
            torchserve_command(),
        ),
        peer(
            "mlserver",
            "MLServer",
            "a custom runtime; adaptive batching with `max_batch_size` 64 and `max_batch_time` 1 ms; `parallel_workers` 0, "
            "because sending a request to another process takes longer than this model.",
            v2("mlp", ("JSON", "gRPC")),
            mlserver_command,
            grpc=True,
        ),
        peer(
            "litserve",
            "LitServe",
            f"`max_batch_size` 64, `batch_timeout` 1 ms, `fast_queue`; {cores} for HTTP and {WORKERS} for inference.",
            plain(),
            program_command("litserve_server.py"),
        ),
        peer(
            "bentoml",
            "BentoML",
            f"adaptive batching with `max_batch_size` 64 and `max_latency_ms` 1000; `workers` {WORKERS}; no access log, "
            "metrics or tracing.",
            [Encoding("JSON", bentoml_json, lambda body: json.loads(body)[0])],
            bentoml_command,
        ),
        peer(
            "ray",
            "Ray Serve",
            f"{WORKERS} replicas, `serve.batch` with `max_batch_size` 64 and 1 ms; "
            "`RAY_SERVE_THROUGHPUT_OPTIMIZED=1`; no dashboard, no access log.",
            plain(),
            program_command("ray_server.py"),
        ),
        peer(
            "fastapi",
            "FastAPI",
            "what a team builds first: uvicorn with uvloop and httptools, one process, no access log, one forward pass for "
            "each request.",
            plain(),
            fastapi_command(1),
        ),
        peer(
            "fastapi_workers",
            f"FastAPI ({cores})",
            f"the same with `--workers {WORKERS}`.",
            plain(),
            fastapi_command(WORKERS),
            environment="fastapi",
        ),
    ]
