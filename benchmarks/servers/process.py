"""Runs a server in a separate process tree: starts it on free loopback ports, waits until it is ready, and stops the tree."""

import contextlib
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from dashboard.loads.requests import Request
from serving.compiled.loading import VARIABLE
from tests.support.ports import free_ports
from tests.support.serving_process import ServerProcess, descendants

READY_WITHIN_S = 120.0
ENDS_WITHIN_S = 30.0


class CannotStart(Exception):
    """A server did not start. The text gives the reason."""


@dataclass(frozen=True)
class Running:
    """A running server. http, grpc: "host:port", or "" if it lacks the protocol. pid: the root of its process tree."""

    pid: int
    http: str
    grpc: str = ""


@contextlib.contextmanager
def slipway(
    repository: Path, models: Sequence[str], flags: Sequence[str] = (), compiled: bool = True
) -> Iterator[Running]:
    """Run this project's server with some models of a repository. compiled: use compiled modules, if they are built."""
    variables = {} if compiled else {VARIABLE: "no"}
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(ServerProcess(repository, *_explicit(models), *flags, environment=variables))
        except AssertionError as error:
            raise CannotStart(_last_line(str(error))) from None
        yield Running(process.pid, process.http, process.grpc)


@contextlib.contextmanager
def triton(repository: Path, models: Sequence[str]) -> Iterator[Running]:
    """Run NVIDIA's server from `TRITON_DIR`. Its run.sh reads the ports and the repository from environment variables."""
    folder = os.environ.get("TRITON_DIR")
    if not folder:
        raise CannotStart("TRITON_DIR names no folder with a run.sh that starts tritonserver")
    http, grpc, metrics = free_ports(3)
    ports = {"HTTP": str(http), "GRPC": str(grpc), "METRICS": str(metrics)}
    command = ["bash", str(Path(folder, "run.sh")), *_explicit(models)]
    ready = f"http://127.0.0.1:{http}/v2/health/ready"
    with process(command, os.environ | ports | {"MODELS": str(repository)}, ready) as pid:
        yield Running(pid, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")


@contextlib.contextmanager
def process(
    command: Sequence[str],
    environment: Mapping[str, str],
    ready: str | Request,
    address: str = "",
    cwd: Path | None = None,
) -> Iterator[int]:
    """Run a program until the block ends. ready: a URL, or a request to `address`, whose answer is 200 after the start."""
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            command, env=dict(environment), cwd=cwd, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deadline = time.monotonic() + READY_WITHIN_S
            while not answers(ready, address):
                if started.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise CannotStart(_last_line(log.read().decode(errors="replace")))
                time.sleep(0.05)
            yield started.pid
        finally:
            _end(started)


def answers(ready: str | Request, address: str = "") -> bool:
    """Return whether a URL, or a request to "host:port", is answered with 200."""
    try:
        if isinstance(ready, str):
            urllib.request.urlopen(ready, timeout=5).close()
        else:
            ask(address, ready)
    except OSError:
        return False
    return True


def ask(address: str, request: Request) -> bytes:
    """Return the body of one answer. Raise OSError for any status but 2xx."""
    post = urllib.request.Request(f"http://{address}{request.path}", request.body, dict(request.headers))
    with urllib.request.urlopen(post, timeout=30) as answer:
        return bytes(answer.read())


def _explicit(models: Sequence[str]) -> list[str]:
    return ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)]


def _end(started: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to the root process, then to the processes that it leaves behind. Kill those that do not end."""
    tree = []
    for pid in descendants(started.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            tree.append(psutil.Process(pid))
    if started.poll() is None:
        started.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(ENDS_WITHIN_S)
    if started.poll() is None:
        started.kill()
        started.wait()
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    _, alive = psutil.wait_procs(tree, timeout=5)
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it did not answer in time and printed nothing"
