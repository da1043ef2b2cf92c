"""A real `python -m serving` for tests: started on free loopback ports, waited for, always ended.

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
PATIENCE_S = 60.0  # for conditions that are met soon, because a loaded machine is slow: only a fault takes as long


def wait_until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "the condition") -> Any:
    """Poll until `condition()` is true and return its result; AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"{what} was not met within {timeout_s:g} s"
        time.sleep(0.02)


def descendants(pid: int, without: Collection[int] = ()) -> set[int]:
    """The ids of the processes below `pid`, children of children too; zombies are left out, and `without` with theirs."""
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
    """Called before each test of serving/: servers that fixtures keep for a whole run are not the test's own."""
    _before.clear()
    _before.update(descendants(os.getpid()))


def new_descendants() -> set[int]:
    """The processes that the running test has started and that still live."""
    return descendants(os.getpid(), _before)


def open_files() -> int:
    """How many descriptors this process has open, once what nobody refers to has gone."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def kill_and_wait(pid: int) -> None:
    """SIGKILL a process that is not our child and wait until it has ended, all of its threads too."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], PATIENCE_S)[0], f"process {pid} did not end"
    finally:
        os.close(pidfd)


class ServerProcess:
    """The inference server in a process of its own. `http`, `grpc` and `metrics` are "host:port" once it is up.

    repository: one path or several. flags: tritonserver's, later ones win. wait: "ready", "live", or "" for none.
    environment: added to the process's variables. cwd: where it runs. program: what begins the command line.
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
        self.addresses: dict[str, Any] = {}  # of every listener, by its name
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
        """SIGTERM, and the exit status once the server has drained."""
        return self.signal(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        return self.signal(signal.SIGKILL, PATIENCE_S)

    def signal(self, number: int, timeout_s: float) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """End the server whatever its state; its children end with it."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.terminate(15.0)
            except subprocess.TimeoutExpired:
                self.kill()
        self._folder.cleanup()

    # -- what it says ----------------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """The server, and its frontend workers where it has some."""
        return [self.pid, *filter(is_frontend_worker, descendants(self.pid))]

    def model_processes(self) -> set[int]:
        """The processes of models."""
        return {pid for pid in descendants(self.pid) if not is_frontend_worker(pid)}

    def memory(self, line: str = "VmRSS") -> int:
        """The bytes that this line of /proc/PID/status says, over all of `pids`."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        return sum(int(text.partition(f"{line}:")[2].split()[0]) << 10 for text in texts)

    def descriptors(self) -> int:
        """How many descriptors all of `pids` have open."""
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
        """GET over HTTP: status and body, decoded where it is JSON."""
        return self.request("GET", path)

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """POST a JSON body: status and body, decoded where it is JSON."""
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
        """Read where it listens; False while it has not said so."""
        try:
            addresses = self.addresses = json.loads(self._address_file.read_text())
        except (OSError, ValueError):
            return False
        self.http = addresses.get("http") or ""
        self.grpc = addresses.get("grpc") or ""
        self.metrics = addresses.get("metrics") or ""
        return True
