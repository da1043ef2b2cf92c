"""Compares the real TorchServe and Slipway on the same archives: both run all the time and take turns at each case.

Both are started by TorchServe's own command line and config.properties. torch-model-archiver makes the archives.
"""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import psutil

from benchmarks.comparison import measure
from benchmarks.comparison.encodings import FEATURES, Encoding, answer, check
from benchmarks.comparison.measure import order
from benchmarks.comparison.peers import expected_numbers
from benchmarks.comparison.record import Key, Results, Unfinished
from benchmarks.folders import CACHE, PROGRAMS, REPOSITORY
from benchmarks.machine import commit, machine
from benchmarks.servers.commands import NEEDS, pinned
from benchmarks.servers.environments import made, variables_of
from benchmarks.servers.models import write
from benchmarks.servers.process import CannotStart, Running
from dashboard.loads.requests import Request, plain_json
from tests.support.serving_process import descendants
from tests.support.torchserve_process import OURS, REAL, Server, torchserve


@dataclass(frozen=True)
class Settings:
    """seconds: the duration of each measurement. warm_up_s: the duration of the load before it, in which Java compiles code.

    clients: the number of clients; a batch is full at half of them.
    """

    rounds: int = 5
    seconds: int = 3
    warm_up_s: int = 10
    clients: int = 32


QUICK = Settings(rounds=1, seconds=1, warm_up_s=1)
BYTES = bytes(range(256)) * 4
OCTETS = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True)
class Case:
    """An archive and its request. target: the throughput that Slipway should reach, as a multiple of TorchServe's."""

    model: str
    title: str
    handler: str
    request: Request
    target: float
    batch_size: int
    extra: str = ""


MLP = plain_json("/predictions/mlp512", FEATURES)
CASES = [
    Case("mlp512", "mlp512, JSON, batch 16", "torchserve_handler.py", MLP, 3.0, 16, "mlp.py"),
    Case("bytes", "no-op, 1 KB", "bytes_handler.py", Request("/predictions/bytes", BYTES, OCTETS), 4.0, 1),
    Case(
        "bytes16", "no-op, 1 KB, batch 16", "bytes_handler.py", Request("/predictions/bytes16", BYTES, OCTETS), 4.0, 16
    ),
]
NAMES = {"torchserve": REAL, "slipway": OURS}
WORKERS = {"torchserve": "model_service_worker", "slipway": "child_program"}  # a text in the command line of a worker


def run(settings: Settings) -> Results:
    """Measure every case in every round; after an interrupted run, only the missing measurements."""
    if shutil.which("java") is None:
        raise CannotStart(f"it needs java: sudo apt-get install {NEEDS['torchserve']['java']}")
    measured = commit()
    unfinished = Unfinished(CACHE / "handlers.jsonl", asdict(settings) | {"commit": measured})
    about = {
        "date": date.today().isoformat(),
        "commit": measured,
        "machine": machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "settings": asdict(settings),
        "version": pinned("torchserve"),
        "targets": {case.title: case.target for case in CASES},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handlers", ignore_cleanup_errors=True)))
        store = _store(folder)
        servers = {name: stack.enter_context(_started(which, store, folder / name)) for name, which in NAMES.items()}
        for server in servers.values():
            _check(server)
        for case in CASES:
            for name, server in servers.items():
                key = Key(0, name, case.title, "warm-up")
                measure.closed(key, _running(server), case.request, settings.clients, settings.warm_up_s)
        for number in range(1, settings.rounds + 1):
            for case in CASES:
                for name in order(list(servers), number):
                    key = Key(number, name, case.title, f"{settings.clients} clients")
                    if key not in unfinished:
                        running = _running(servers[name])
                        one = measure.closed(key, running, case.request, settings.clients, settings.seconds)
                        unfinished.add(one)
        about["worker_mb"] = {name: _worker_mb(servers[name], WORKERS[name]) for name in servers}
    unfinished.finish()
    return Results(about, unfinished.measurements)


def _store(folder: Path) -> Path:
    """Return a model store with the archives."""
    store = folder / "store"
    store.mkdir()
    environment = made("torchserve")
    for case in CASES:
        line = ["--model-name", case.model, "--version", "1.0", "--handler", str(PROGRAMS / case.handler)]
        line += ["--extra-files", str(PROGRAMS / case.extra)] if case.extra else []
        command = [str(environment / "bin" / "torch-model-archiver"), *line, "--export-path", str(store)]
        variables = variables_of(environment) | {"TMPDIR": str(folder)}
        subprocess.run(command, env=variables, check=True, capture_output=True)
    return store


def _started(which: str, store: Path, folder: Path) -> AbstractContextManager[Server]:
    settings = {
        case.model: {
            "1.0": {
                "defaultVersion": True,
                "marName": f"{case.model}.mar",
                "minWorkers": 1,
                "maxWorkers": 1,
                "batchSize": case.batch_size,
                "maxBatchDelay": 10,
                "responseTimeout": 120,
            }
        }
        for case in CASES
    }
    properties = [
        f"model_store={store}",
        f"load_models={','.join(f'{case.model}.mar' for case in CASES)}",
        f"models={json.dumps(settings)}",
        "disable_system_metrics=true",
        "job_queue_size=1000",
    ]
    model = write(REPOSITORY, ["mlp"]) / "mlp" / "1" / "model.onnx"
    variables = {"MODEL": str(model), "OMP_NUM_THREADS": "1"}
    if which == OURS:  # turns off the access log, as TorchServe's log.xml does: no file can be created under /dev/null
        variables["LOG_LOCATION"] = f"{os.devnull}/logs"
    return torchserve(which, folder, properties, ["--disable-token-auth"], variables)


def _running(server: Server) -> Running:
    return Running(server.pid, server.inference)


def _check(server: Server) -> None:
    """Wait for the workers, and check that the answers are right."""
    running = _running(server)
    json_case, *bytes_cases = CASES
    numbers = Encoding(json_case.title, json_case.request, lambda body: json.loads(body)["output"])
    check(running, numbers, expected_numbers())
    for case in bytes_cases:
        if answer(running, case.request) != BYTES:
            raise CannotStart(f"{server.name} answers other bytes than it was sent")


def _worker_mb(server: Server, name: str) -> float:
    """Return the resident megabytes of a worker, as the mean over the workers of all archives."""
    found = [psutil.Process(pid) for pid in descendants(server.pid)]
    sizes = [one.memory_info().rss / 1e6 for one in found if name in " ".join(one.cmdline())]
    return round(sum(sizes) / len(sizes), 1)
