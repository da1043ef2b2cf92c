"""An inference server that a measurement starts for one version alone, on loopback, and ends in any case.

The server is in the process group of the worker, which `up` ends with the worker. Without `up` the next attempt of the job
finds the process by its id and its start time, and ends it.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path

import psutil
from django.conf import settings
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Measurement, Replay, Server, Tuning
from dashboard.models.measurement import OwnServer
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.environment import BASE_DIR
from dashboard.shared.exceptions import Conflict, Unavailable
from repository.config import version_policy
from repository.config.document import Document

# The flags of the bundled server, in SLIPWAY_SERVER_FLAGS, that decide how a model is loaded and how fast it answers. The rest
# is about the bundled server alone: its listeners, files and budgets. The response cache stays off, because it would answer
# equal requests without the model.
PASSED_ON = frozenset(
    (
        "--backend-config",
        "--check-memory",
        "--disable-auto-complete-config",
        "--frontend-workers",
        "--grpc-infer-response-compression-level",
        "--grpc-max-message-size",
        "--host-policy",
        "--http-max-input-size",
        "--model-config-name",
        "--model-load-gpu-limit",
        "--model-namespacing",
        "--rate-limit",
        "--rate-limit-resource",
        "--strict-model-config",
    )
)
START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 10.0
_DEATH_S = 1.0  # how long a process may take to end after its connections have ended
POLL_S = 0.1
_LOG_CHARACTERS = 300
_FLAGS_FILE = "server.args"
_SAME_START_S = 0.01
_FOLDERS = {Measurement: "measurements", Tuning: "tunings", Replay: "replays"}

Measured = Measurement | Tuning | Replay


@contextlib.contextmanager
def own_server(
    measurement: Measured,
    document: Document,
    go_on: Callable[[], None],
    steps: Mapping[str, Document] | None = None,
) -> Iterator[Server]:
    """Run a server that serves only the version, with this configuration, and the models that an ensemble calls.

    steps: configurations of such models, by their names. go_on: called all the time while the server starts and loads; it may
    raise to end the start. Raises Unavailable if the server does not start. Raises DashboardError, with the server's reason, if
    it cannot load the version.
    """
    version, kind = measurement.version, measurement._meta.verbose_name
    folder = _folder(measurement)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "serving", f"@{_write_flags(folder)}"],
            cwd=BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        started = psutil.Process(process.pid).create_time()
        measurement.server = OwnServer(pid=process.pid, started=started)
        if not type(measurement).objects.filter(pk=measurement.pk).update(server=measurement.server):
            raise Conflict(f"the {kind} was deleted meanwhile")
        server = _wait_for(process, folder, go_on)
        for name, step in (steps or {}).items():
            _load(server, name, _as_json(step.without_traffic().message), go_on)
        _load(server, version.model.name, _override(document, version.number), go_on)
        try:
            yield server
        except Unavailable:
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise Unavailable(
                    f"the server of the {kind} {_ended(process.wait(_DEATH_S))}; begin it again"
                ) from None
            raise
    finally:
        _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def end_server(measurement: Measured) -> bool:
    """End the server that an earlier attempt left, and remove its folder. Return whether there was such a server.

    The process is no child of this one. In a container whose first process reaps nothing, it stays as a zombie after its end.
    """
    try:
        return _end_left(measurement.server)
    finally:
        shutil.rmtree(_folder(measurement), ignore_errors=True)  # its flags have a key


def end_server_of_deleted(kind: type[Measured], pk: int) -> None:
    """End the server of a row that was deleted while its worker was dead, and remove its folder."""
    folder = folder_of(kind, pk)
    flags = f"@{folder / _FLAGS_FILE}"
    for process in psutil.process_iter(["cmdline", "create_time"]):
        if flags in (process.info["cmdline"] or ()):
            _end_left(OwnServer(pid=process.pid, started=process.info["create_time"]))
    shutil.rmtree(folder, ignore_errors=True)


def _end_left(known: OwnServer) -> bool:
    if "pid" not in known:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(known["pid"])
        if abs(process.create_time() - known["started"]) > _SAME_START_S or _has_ended(process):
            return False
        process.terminate()
        if not _ends(process):
            process.kill()
            _ends(process)
        return True
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server: with SIGTERM, and with SIGKILL if it takes too long. The processes of its models end with it."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def _ends(process: psutil.Process) -> bool:
    """Wait until a process that is no child has ended, at most STOP_TIMEOUT_S, and return whether it has."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not _has_ended(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _ended(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _folder(measurement: Measured) -> Path:
    return folder_of(type(measurement), measurement.pk)


def folder_of(kind: type[Measured], pk: int) -> Path:
    """Return the folder of the server that serves for a row."""
    folder: Path = settings.DATA_DIR / _FOLDERS[kind] / str(pk)
    return folder


def _write_flags(folder: Path) -> Path:
    """Write the server's flags to a file and return its path, because every account of the machine can read command lines."""
    restricted = (
        f"model-repository,shared-memory,logging,trace:{settings.SERVER_CONTROL_HEADER}={settings.SERVER_CONTROL_KEY}"
    )
    flags = {
        "--model-repository": settings.MODEL_REPOSITORY,
        "--model-control-mode": "explicit",
        "--http-address": "127.0.0.1",
        "--http-port": 0,
        "--grpc-address": "127.0.0.1",
        "--grpc-port": 0,
        "--metrics-address": "127.0.0.1",
        "--metrics-port": 0,
        "--address-file": folder / "addresses.json",
        "--exit-timeout-secs": 2,
        "--http-restricted-api": restricted,
        "--grpc-restricted-protocol": restricted,
        "--model-environment": "bounded",
        "--strict-devices": str(settings.STRICT_DEVICES).lower(),
    }
    if settings.REQUIRE_TOKENS:
        flags["--auth-file"] = settings.AUTH_FILE
    path = folder / _FLAGS_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        passed_on = [flag for flag in settings.SERVER_FLAGS if flag.partition("=")[0] in PASSED_ON]
        file.write("\n".join([*(f"{flag}={value}" for flag, value in flags.items()), *passed_on]) + "\n")
    return path


def _wait_for(process: "subprocess.Popen[bytes]", folder: Path, go_on: Callable[[], None]) -> Server:
    """Wait until the server listens, and return it with its addresses. It has the keys of the bundled server."""
    pause = threading.Event()
    for _ in range(int(START_TIMEOUT_S / POLL_S)):
        go_on()
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((folder / "addresses.json").read_text())
            return Server(
                name="of the measurement",
                http_url=f"http://{found['http']}",
                grpc_url=found["grpc"],
                metrics_url=f"http://{found['metrics']}",
                bundled=True,
            )
        if process.poll() is not None:
            log = (folder / "server.log").read_text(errors="replace").strip()[-_LOG_CHARACTERS:]
            raise Unavailable(f"the server of the measurement did not start: {log or 'it ended without a message'}")
        pause.wait(POLL_S)
    raise Unavailable(f"the server of the measurement did not start within {START_TIMEOUT_S:g} s")


def _load(server: Server, name: str, override: str, go_on: Callable[[], None]) -> None:
    """Load a model on a thread, so that a load of any length can be cancelled: the end of the server ends it."""
    done: Future[None] = Future()

    async def load() -> None:
        async with AsyncServerClient(server) as client:
            await client.load(name, override)

    def run() -> None:
        try:
            asyncio.run(load())
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="load of a measurement", daemon=True).start()
    while not done.done():
        go_on()
        wait([done], POLL_S)
    done.result()


def _override(document: Document, number: int) -> str:
    """Return the configuration that serves only this version, as JSON for a load request."""
    config = ModelConfig()
    config.CopyFrom(document.without_traffic().answered([number], number, [number]).message)
    version_policy.set_specific(config, [number])
    return _as_json(config)


def _as_json(config: ModelConfig) -> str:
    return json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
