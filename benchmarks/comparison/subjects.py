"""The servers that take turns, each with the settings that its documentation recommends for production."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from benchmarks.comparison import environments, models, servers
from benchmarks.comparison.folders import CACHE, PROGRAMS, REQUIREMENTS
from benchmarks.comparison.servers import Running
from benchmarks.loads.requests import Request, numbers, plain_json, v2_binary, v2_grpc, v2_json
from tests.support.ports import free_ports

REPOSITORY = CACHE / "models"
WORKERS = os.cpu_count() or 1  # for the peers, which are processes that each use one core
# Nothing is reported to anybody; Ray's switch for throughput, and no tokens between its own processes.
FOR_PEERS = {
    "OMP_NUM_THREADS": "1",
    "BENTOML_DO_NOT_TRACK": "True",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_AUTH_MODE": "disabled",
}
ROW = models.inputs("mlp")
FEATURES = {"features": numbers(ROW["input"])}


@dataclass(frozen=True)
class Encoding:
    """How the 512 numbers go to a server. `read`: the ten numbers of an answer's body."""

    name: str
    request: Request
    read: Callable[[bytes], Any]


@dataclass(frozen=True)
class Server:
    """`settings`: what the page says of it; `start` runs it while a block lasts."""

    name: str
    title: str
    settings: str
    encodings: Sequence[Encoding]
    start: Callable[[], AbstractContextManager[Running]]


def check(running: Running, encoding: Encoding, expected: np.ndarray) -> None:
    """Raise CannotStart unless the server computes the model's own numbers."""
    request = encoding.request
    try:
        body = _call(running.grpc, request) if request.http2 else servers.ask(running.http, request)
        found = np.asarray(encoding.read(body), np.float32).reshape(-1)
    except (OSError, grpc.RpcError, ValueError, LookupError) as error:
        raise servers.CannotStart(f"{encoding.name}: {error}") from None
    if found.shape != expected.shape or not np.allclose(found, expected, atol=1e-3):
        raise servers.CannotStart(f"{encoding.name}: it computes {found[:3]}... instead of {expected[:3]}...")


def _call(address: str, request: Request) -> bytes:
    with grpc.insecure_channel(address) as channel:
        return bytes(channel.unary_unary(request.path)(request.body[5:], timeout=30))


# -- the answers -------------------------------------------------------------------------------------------------------
def _of_v2_json(body: bytes) -> Any:
    return json.loads(body)["outputs"][0]["data"]


def _of_v2_binary(body: bytes) -> Any:
    return np.frombuffer(body[-40:], np.float32)


def _of_v2_grpc(body: bytes) -> Any:
    answer = pb.ModelInferResponse.FromString(body)
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], np.float32)
    return list(answer.outputs[0].contents.fp32_contents)


def v2(model: str, names: Sequence[str] = ("JSON", "binary", "gRPC")) -> list[Encoding]:
    """Return encodings of the V2 protocol."""
    known = {
        "JSON": Encoding("JSON", v2_json(model, ROW), _of_v2_json),
        "binary": Encoding("binary", v2_binary(model, ROW), _of_v2_binary),
        "gRPC": Encoding("gRPC", v2_grpc(model, ROW), _of_v2_grpc),
    }
    return [known[name] for name in names]


def plain(path: str = "/predict") -> list[Encoding]:
    """Return the JSON that most peers take: {"features": [...]} -> {"output": [...]}."""
    return [Encoding("JSON", plain_json(path, FEATURES), lambda body: json.loads(body)["output"])]


# -- the servers -------------------------------------------------------------------------------------------------------
def slipway(name: str, title: str, settings: str, model: str, encodings: Sequence[str], *flags: str) -> Server:
    def start() -> AbstractContextManager[Running]:
        return servers.slipway(models.write(REPOSITORY, [model]), [model], flags)

    return Server(name, title, settings, v2(model, encodings), start)


def triton() -> Server:
    return Server(
        "triton",
        "Triton",
        "`tritonserver` with its ONNX Runtime backend; the same repository and configuration as Slipway.",
        v2("mlp"),
        lambda: servers.triton(models.write(REPOSITORY, ["mlp"]), ["mlp"]),
    )


@dataclass(frozen=True)
class Ports:
    """What a peer is given; most listen on `http` alone."""

    http: int
    grpc: int
    more: Sequence[int]


Command = Callable[[Path, Ports], Sequence[str]]  # writes what the peer reads into a folder


def peer(
    name: str,
    title: str,
    settings: str,
    encodings: Sequence[Encoding],
    command: Command,
    grpc: bool = False,
    environment: str = "",
) -> Server:
    """Return a server that runs in the environment of the same name, or in another's."""
    environment = environment or name

    def start() -> AbstractContextManager[Running]:
        return run_peer(environment, command, encodings, grpc=grpc)

    return Server(name, f"{title} {_pinned(environment)}", settings, encodings, start)


@contextmanager
def run_peer(
    name: str, command: Command, encodings: Sequence[Encoding], port: int = 0, grpc: bool = False
) -> Iterator[Running]:
    """Run a peer while the block lasts, on a port of its own unless one is given."""
    environment = environments.environment(name)
    http, second, *more = free_ports(5)
    http = port or http
    # A folder with a short path, since some keep their sockets in it: Unix allows those 107 characters.
    with tempfile.TemporaryDirectory(prefix="peer", ignore_cleanup_errors=True) as folder:
        variables = environments.variables(environment) | _variables(Path(folder), http)
        line = command(Path(folder), Ports(http, second, more))
        address = f"127.0.0.1:{http}"
        with servers.process(line, variables, encodings[0].request, address, Path(folder)) as pid:
            yield Running(pid, address, f"127.0.0.1:{second}" if grpc else "")


def _variables(folder: Path, port: int) -> dict[str, str]:
    model = models.write(REPOSITORY, ["mlp"]) / "mlp" / "1" / "model.onnx"
    # Nothing that a peer writes for its user or for the next run outlives the folder.
    homes = dict.fromkeys(("HOME", "TMPDIR", "TEMP"), str(folder))
    ours = {"MODEL": str(model), "PORT": str(port), "WORKERS": str(WORKERS), "PYTHONPATH": str(PROGRAMS)}
    return {**FOR_PEERS, **homes, **ours}


def _pinned(name: str) -> str:
    """Return the version of a peer in its requirements."""
    for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines():
        package, _, version = line.partition("==")
        if package.partition("[")[0] == name:
            return version.split()[0]
    raise LookupError(name)


def _program(name: str) -> Command:
    return lambda folder, ports: ["python", str(PROGRAMS / name)]


def fastapi_command(workers: int) -> Command:
    """Return what runs the baseline in this many processes."""

    def command(folder: Path, ports: Ports) -> Sequence[str]:
        where = ["--app-dir", str(PROGRAMS), "--port", str(ports.http), "--workers", str(workers)]
        return ["python", "-m", "uvicorn", "fastapi_server:app", *where, "--log-level", "warning", "--no-access-log"]

    return command


def _mlserver(folder: Path, ports: Ports) -> Sequence[str]:
    settings = {
        "host": "127.0.0.1",
        "http_port": ports.http,
        "grpc_port": ports.grpc,
        "metrics_port": ports.more[0],
        "parallel_workers": 0,
        "debug": False,
        "logging_settings": {"version": 1, "root": {"level": "WARNING"}},
    }
    model = {
        "name": "mlp",
        "implementation": "mlserver_runtime.MlpRuntime",
        "max_batch_size": 64,
        "max_batch_time": 0.001,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "mlp").mkdir()
    (folder / "mlp" / "model-settings.json").write_text(json.dumps(model))
    return ["mlserver", "start", str(folder)]


def _bentoml(folder: Path, ports: Ports) -> Sequence[str]:
    where = ["--working-dir", str(PROGRAMS), "--host", "127.0.0.1", "--port", str(ports.http)]
    return ["bentoml", "serve", "bentoml_service:MlpService", *where]


TORCHSERVE_LOG = """\
<Configuration><Appenders><Console name="console"><PatternLayout pattern="%p %c - %m%n"/></Console></Appenders>
<Loggers><Root level="fatal"><AppenderRef ref="console"/></Root></Loggers></Configuration>
"""


def torchserve_command(model: str = "mlp") -> Command:
    """Return what archives the handler and serves it as `model`."""

    def command(folder: Path, ports: Ports) -> Sequence[str]:
        batching = {
            "defaultVersion": True,
            "marName": f"{model}.mar",
            "minWorkers": WORKERS,
            "maxWorkers": WORKERS,
            "batchSize": 64,
            "maxBatchDelay": 1,
            "responseTimeout": 120,
        }
        addresses = zip(("management_address", "metrics_address"), ports.more, strict=False)
        lines = [
            f"inference_address=http://127.0.0.1:{ports.http}",
            *(f"{name}=http://127.0.0.1:{port}" for name, port in addresses),
            f"grpc_inference_port={ports.grpc}",
            f"grpc_management_port={ports.more[2]}",
            f"model_store={folder}",
            f"load_models={model}.mar",
            f"models={json.dumps({model: {'1.0': batching}})}",
            "disable_system_metrics=true",
        ]
        (folder / "config.properties").write_text("\n".join(lines))
        (folder / "log.xml").write_text(TORCHSERVE_LOG)
        archive = (
            f"torch-model-archiver --model-name {model} --version 1.0 --handler '{PROGRAMS / 'torchserve_handler.py'}' "
            f"--extra-files '{PROGRAMS / 'mlp.py'}' --export-path ."
        )
        serve = "torchserve --start --foreground --ncs --disable-token-auth --ts-config config.properties"
        return ["bash", "-c", f"{archive} && exec {serve} --log-config log.xml"]

    return command


def all_servers(frontend_workers: int = 0) -> list[Server]:
    """Return every subject; Slipway stands first, and what it is compared with follows."""
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
            "which is quicker here than a pool, since the model takes less time than the way to another process.",
            v2("mlp", ("JSON", "gRPC")),
            _mlserver,
            grpc=True,
        ),
        peer(
            "litserve",
            "LitServe",
            f"`max_batch_size` 64, `batch_timeout` 1 ms, `fast_queue`; {cores} for HTTP and {WORKERS} for inference.",
            plain(),
            _program("litserve_server.py"),
        ),
        peer(
            "bentoml",
            "BentoML",
            f"adaptive batching with `max_batch_size` 64; `workers` {WORKERS}; no access log, metrics or tracing.",
            [Encoding("JSON", bentoml_json, lambda body: json.loads(body)[0])],
            _bentoml,
        ),
        peer(
            "ray",
            "Ray Serve",
            f"{WORKERS} replicas, `serve.batch` with `max_batch_size` 64 and 1 ms; "
            "`RAY_SERVE_THROUGHPUT_OPTIMIZED=1`; no dashboard, no access log.",
            plain(),
            _program("ray_server.py"),
        ),
        peer(
            "fastapi",
            "FastAPI",
            "the server that a team starts with: under uvicorn with uvloop and httptools, one process, no access log, one "
            "forward pass for each request.",
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
