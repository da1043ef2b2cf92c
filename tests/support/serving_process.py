"""A real `python -m serving` for tests: it starts on free loopback ports, tests wait until it is ready, and it always ends.

with ServerProcess(repository, "--model-control-mode=explicit", "--load-model=digits") as server:
    httpx.get(f"{server.http_url}/v2"); tritonclient.grpc.InferenceServerClient(server.grpc)
"""

import gc
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tests.support.frontend_workers import FLAGS, is_frontend_worker

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 240.0
PATIENCE_S = 60.0  # the timeout for conditions that are usually met soon: only a fault takes longer


def wait_until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "the condition") -> Any:
    """Poll until `condition()` is true, and return its result. Raise AssertionError after the timeout.

    Between two polls it waits ten times as long as the condition took: a condition that asks a page would otherwise take half
    a core from what it waits for.
    """
    start = time.monotonic()
    while True:
        asked = time.monotonic()
        result = condition()
        if result:
            return result
        answered = time.monotonic()
        assert answered - start < timeout_s, f"{what} was not met within {timeout_s:g} s"
        time.sleep(min(max(0.02, 10 * (answered - asked)), 0.25))


def descendants(pid: int, without: Collection[int] = ()) -> set[int]:
    """Return the ids of all descendants of `pid`, except zombies, and except `without` and their descendants."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry)] = int(fields[1])
    found: set[int] = set()
    while grown := {child for child, parent in parents.items() if parent in found | {pid}} - found - set(without):
        found |= grown
    return found


_before: set[int] = set()


def remember_descendants() -> None:
    """Note the processes that run before a test of serving/, such as the servers of fixtures that live for a whole run."""
    _before.clear()
    _before.update(descendants(os.getpid()))


def new_descendants() -> set[int]:
    """Return the processes that the running test has started and that still run."""
    return descendants(os.getpid(), _before)


def open_files() -> int:
    """Return the number of open file descriptors of this process, after a garbage collection."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def kill_and_wait(pid: int) -> None:
    """Send SIGKILL to a process that is no child of this one, and wait until it has ended with all its threads."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], PATIENCE_S)[0], f"process {pid} did not end"
    finally:
        os.close(pidfd)


class ServerProcess:
    """The inference server in a process of its own. http, grpc, metrics: "host:port", after the start.

    repository: one path or several. flags: flags of tritonserver; later flags win. wait: "ready", "live", or "" for no wait.
    environment: more environment variables. cwd: the working directory. program: the beginning of the command line.
    """

    def __init__(
        self,
        repository: Path | str | list[Path],
        *flags: str,
        wait: str = "ready",
        environment: dict[str, str] | None = None,
        timeout_s: float = START_TIMEOUT_S,
        cwd: Path = ROOT,
        program: Sequence[str] = (sys.executable, "-m", "serving"),
    ) -> None:
        self.program = program
        self.repositories = repository if isinstance(repository, list) else [Path(repository)]
        self.flags = flags
        self.wait = wait
        self.environment = environment or {}
        self.timeout_s = timeout_s
        self.cwd = cwd
        self.addresses: dict[str, Any] = {}  # name of a listener -> its address
        self.http = self.grpc = self.metrics = ""
        self._folder = tempfile.TemporaryDirectory(prefix="slipway-test-")
        self._log_path = Path(self._folder.name, "server.log")
        self._address_file = Path(self._folder.name, "addresses.json")
        self.process: subprocess.Popen[bytes] | None = None

    # -- life ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> "ServerProcess":
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> "ServerProcess":
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
            )
        if self.wait:
            self._wait_for(f"/v2/health/{self.wait}")
        return self

    def terminate(self, timeout_s: float = PATIENCE_S) -> int:
        """Send SIGTERM. Return the exit status, after the server has drained."""
        return self.signal(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        return self.signal(signal.SIGKILL, PATIENCE_S)

    def signal(self, number: int, timeout_s: float) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """End the server in any state. Its child processes end with it."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.terminate(15.0)
            except subprocess.TimeoutExpired:
                self.kill()
        self._folder.cleanup()

    # -- state -----------------------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """The ids of the server process and of its frontend workers."""
        return [self.pid, *filter(is_frontend_worker, descendants(self.pid))]

    def model_processes(self) -> set[int]:
        """Return the ids of the processes of models."""
        return {pid for pid in descendants(self.pid) if not is_frontend_worker(pid)}

    def memory(self, line: str = "VmRSS") -> int:
        """Return the bytes in this line of /proc/PID/status, as the sum over all `pids`."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        return sum(int(text.partition(f"{line}:")[2].split()[0]) << 10 for text in texts)

    def descriptors(self) -> int:
        """Return the number of open file descriptors of all `pids`."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids)

    @property
    def http_url(self) -> str:
        return f"http://{self.http}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.metrics}/metrics"

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, Any]:
        """Send a GET request. Return the status and the body, decoded if it is JSON."""
        return self.request("GET", path)

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a POST request with a JSON body. Return the status and the body, decoded if it is JSON."""
        return self.request("POST", path, json.dumps(body if body is not None else {}))

    def request(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        host, _, port = self.http.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body is not None else {})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(content)
        except ValueError:
            return response.status, content

    # -- inside ----------------------------------------------------------------------------------------------------
    def _command(self) -> list[str]:
        return [
            *self.program,
            *(f"--model-repository={path}" for path in self.repositories),
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            "--http-port=0",
            "--grpc-port=0",
            "--metrics-port=0",
            f"--address-file={self._address_file}",
            *FLAGS,
            *self.flags,
        ]

    def _wait_for(self, path: str) -> None:
        deadline = time.monotonic() + self.timeout_s
        while not self._answers(path):
            assert self.process is not None
            status = self.process.poll()
            assert status is None, f"the server ended with status {status}:\n{self.log}"
            assert time.monotonic() < deadline, f"{path} did not answer within {self.timeout_s:g} s:\n{self.log}"
            time.sleep(0.02)

    def _answers(self, path: str) -> bool:
        if not self.http and not self.read_addresses():
            return False
        try:
            return self.get(path)[0] == 200
        except OSError:
            return False

    def read_addresses(self) -> bool:
        """Read the addresses of the listeners. Return False if the server has not written them yet."""
        try:
            addresses = self.addresses = json.loads(self._address_file.read_text())
        except (OSError, ValueError):
            return False
        self.http = addresses.get("http") or ""
        self.grpc = addresses.get("grpc") or ""
        self.metrics = addresses.get("metrics") or ""
        return True
