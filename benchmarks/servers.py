"""The servers that are compared, each on free loopback ports."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.model_factory import onnx_mlp
from tests.support.serving_process import ROOT, ServerProcess

BATCHING = """
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


@contextlib.contextmanager
def slipway() -> Iterator[ServerProcess]:
    """The inference server with the MLP as "mlp"."""
    with tempfile.TemporaryDirectory() as folder:
        onnx_mlp(Path(folder), "mlp", extra=BATCHING)
        with ServerProcess(folder) as server:
            yield server


@contextlib.contextmanager
def fastapi() -> Iterator[tuple[str, int]]:
    """The baseline's "host:port" and process id."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "benchmarks.fastapi_baseline:app",
        f"--port={port}",
        "--log-level=warning",
    ]
    process = subprocess.Popen([*command, "--no-access-log"], cwd=ROOT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/openapi.json")
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(20)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def _wait_for(url: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
