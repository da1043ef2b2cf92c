"""The command, settings and environment with which each peer is started."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.folders import PROGRAMS, REPOSITORY, REQUIREMENTS
from benchmarks.servers.environments import made, variables_of
from benchmarks.servers.models import write
from benchmarks.servers.process import CannotStart, Running, process
from dashboard.loads.requests import Request
from tests.support.ports import free_ports

WORKERS = os.cpu_count() or 1  # the number of worker processes of a peer, one for each core
# The peers send no usage reports. Ray runs in its throughput mode, without authentication between its processes.
FOR_PEERS = {
    "OMP_NUM_THREADS": "1",
    "BENTOML_DO_NOT_TRACK": "True",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_AUTH_MODE": "disabled",
}
NEEDS = {"torchserve": {"java": "default-jre-headless"}}  # peer -> program -> package of Debian


@dataclass(frozen=True)
class Ports:
    """The ports for a peer. Most peers listen only on `http`."""

    http: int
    grpc: int
    more: Sequence[int]


# Writes the peer's files into the folder, and returns the command line.
Command = Callable[[Path, Ports], Sequence[str]]


@contextmanager
def run_peer(name: str, command: Command, ready: Request, port: int = 0, grpc: bool = False) -> Iterator[Running]:
    """Run a peer during the block, on a free port unless `port` is given."""
    for program, package in NEEDS.get(name, {}).items():
        if shutil.which(program) is None:
            raise CannotStart(f"it needs {program}: sudo apt-get install {package}")
    environment = made(name)
    http, second, *more = free_ports(5)
    http = port or http
    # The path is short, because some peers create sockets in this folder, and a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="peer", ignore_cleanup_errors=True) as folder:
        variables = variables_of(environment) | _variables(Path(folder), http)
        line = command(Path(folder), Ports(http, second, more))
        address = f"127.0.0.1:{http}"
        with process(line, variables, ready, address, Path(folder)) as pid:
            yield Running(pid, address, f"127.0.0.1:{second}" if grpc else "")


def _variables(folder: Path, port: int) -> dict[str, str]:
    model = write(REPOSITORY, ["mlp"]) / "mlp" / "1" / "model.onnx"
    # Files that a peer writes for its user or for its next run are removed with the folder.
    homes = dict.fromkeys(("HOME", "TMPDIR", "TEMP"), str(folder))
    ours = {"MODEL": str(model), "PORT": str(port), "WORKERS": str(WORKERS), "PYTHONPATH": str(PROGRAMS)}
    return {**FOR_PEERS, **homes, **ours}


def pinned(name: str) -> str:
    """Return the version of a peer that its requirements give."""
    for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines():
        package, _, version = line.partition("==")
        if package.partition("[")[0] == name:
            return version.split()[0]
    raise LookupError(name)


def program_command(name: str) -> Command:
    return lambda folder, ports: ["python", str(PROGRAMS / name)]


def fastapi_command(workers: int) -> Command:
    """Return the command that runs the FastAPI baseline in `workers` processes."""

    def command(folder: Path, ports: Ports) -> Sequence[str]:
        where = ["--app-dir", str(PROGRAMS), "--port", str(ports.http), "--workers", str(workers)]
        return ["python", "-m", "uvicorn", "fastapi_server:app", *where, "--log-level", "warning", "--no-access-log"]

    return command


def mlserver_command(folder: Path, ports: Ports) -> Sequence[str]:
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


def bentoml_command(folder: Path, ports: Ports) -> Sequence[str]:
    where = ["--working-dir", str(PROGRAMS), "--host", "127.0.0.1", "--port", str(ports.http)]
    return ["bentoml", "serve", "bentoml_service:MlpService", *where]


TORCHSERVE_LOG = """\
<Configuration><Appenders><Console name="console"><PatternLayout pattern="%p %c - %m%n"/></Console></Appenders>
<Loggers><Root level="fatal"><AppenderRef ref="console"/></Root></Loggers></Configuration>
"""


def torchserve_command(model: str = "mlp") -> Command:
    """Return the command that archives the handler and serves it as `model`."""

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
            "job_queue_size=1000",
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
