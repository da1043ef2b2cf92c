"""Two machines with data folders of their own on one PostgreSQL, behind PgBouncer, see each other's changes and heartbeats."""

import os
import re
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import psycopg
import pytest

from tests.dashboard.test_other_databases import PREPARE
from tests.dashboard.web_process import finished, listening, migrated_database, run
from tests.support import engines
from tests.support.ports import free_ports
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, ServerProcess, wait_until

pytestmark = pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}")

CHANGE = """
from dashboard.models import Model
Model.objects.create(name="of_the_other")
"""
SERVER = """
from dashboard.models import Server
Server.objects.create(name="local", http_url="http://127.0.0.1:1", metrics_url="http://127.0.0.1:1", bundled=True)
"""
# Prints what the doctor finds by the checks of PostgreSQL: nothing, then faults that are injected.
DOCTOR = """
import time
from django.db import connection
from dashboard.doctor import database
from dashboard.doctor.check import examine
from dashboard.doctor.table import CHECKS

def look():
    for found in examine(one for one in CHECKS if one.name in ("clock", "sessions", "installation")):
        print(found.check, found.state, *found.faults)

options = connection.settings_dict["OPTIONS"]
options["pool"]["max_size"] = 5
look()
clock = time.time
time.time = lambda: clock() + 90
database._BUSY = 0.0
options["pool"]["max_size"] = 500
look()
"""
# Jobs of these processes have missed a heartbeat. Prints how many of them run again, and what has become of each.
LOST = """
from datetime import timedelta
from django.utils import timezone
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Job
from dashboard.shared import heartbeat
keys = dict((one.pid, one.key) for one in heartbeat.processes())
then = timezone.now() - timedelta(seconds=10)
jobs = [Job.objects.create(kind="x", state="running", heartbeat_at=then, worker=keys[pid]) for pid in {processes}]
print(jobs_requeue_lost(), *(Job.objects.get(pk=job.pk).state for job in jobs))
Job.objects.all().delete()
"""
KEY = "CONTROL" * 8


class Relay(socketserver.ThreadingTCPServer):
    """Passes the watchers' calls on to a server. After `hold` it keeps the next one back, and all others with its fencing
    number `kept`, until `go`. answers: (fencing number, status) of each answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Passage)
        self.target = self.kept = 0
        self.hold, self.go = threading.Event(), threading.Event()
        self.answers: list[tuple[int, int]] = []


class _Passage(socketserver.BaseRequestHandler):
    server: Relay
    _number = 0

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.target)) as there:
            threading.Thread(target=self._answer, args=(there,), daemon=True).start()
            while request := self.request.recv(1 << 16):
                if found := re.search(rb"slipway-fence: (\d+)", request):
                    self._number = int(found[1])
                    if self.server.hold.is_set() and self.server.kept in (0, self._number):
                        self.server.kept = self._number
                        self.server.go.wait(START_TIMEOUT_S)
                there.sendall(request)

    def _answer(self, there: socket.socket) -> None:
        with suppress(OSError):
            while answer := there.recv(1 << 16):
                if answer.startswith(b"HTTP/1.1 "):
                    self.server.answers.append((self._number, int(answer[9:12])))
                self.request.sendall(answer)


class Machines(NamedTuple):
    """first: the address of the first one's pages; folders: the data folders; start: starts a process on a machine."""

    first: str
    token: str
    folders: list[Path]
    database: engines.Engine
    start: Callable[..., "subprocess.Popen[str]"]

    def worker(self, machine: int) -> "subprocess.Popen[str]":
        options = ("-A", "dashboard", "--skip-checks", "worker", "--pool=threads", "--loglevel=ERROR")
        return self.start(machine, "-m", "celery", *options)

    def leader(self) -> tuple[int, int]:
        """Return the process that leads the watchers, and its number."""
        with psycopg.connect(f"host=127.0.0.1 port={self.database.port} user=slipway dbname=machines") as session:
            row = session.execute("SELECT holder, number FROM dashboard_watchlease WHERE until > now()").fetchone()
        found = row and re.search(r"process (\d+)", row[0])
        return (int(found[1]), row[1]) if row and found else (0, 0)

    def silent(self) -> set[object]:
        return {one["pid"] for one in self.get("processes")["results"] if one["silent"]}

    def leading(self) -> dict[object, object]:
        """Return whether each watcher leads, by its process."""
        return {one["pid"]: one["leads"] for one in self.get("processes")["results"] if one["name"] == "watch"}

    def serve(self, http: str, metrics: str) -> None:
        """Set the addresses of the inference server."""
        with psycopg.connect(f"host=127.0.0.1 port={self.database.port} user=slipway dbname=machines") as session:
            session.execute("UPDATE dashboard_server SET http_url = %s, metrics_url = %s", (http, metrics))

    def known(self, pid: int) -> bool:
        return any(one["pid"] == pid for one in self.get("processes")["results"])

    def errors(self, machine: int) -> str:
        """Return what the machine's processes have logged."""
        return (self.folders[machine].parent / "errors").read_text()

    def get(self, path: str) -> dict[str, list[dict[str, object]]]:
        found: dict[str, list[dict[str, object]]] = self.ask(path).raise_for_status().json()
        return found

    def ask(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.get(f"{self.first}/api/v1/{path}", headers=headers, timeout=PATIENCE_S, trust_env=False)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, postgres: engines.Engine) -> Iterator[Machines]:
    folders = [tmp_path_factory.mktemp(name) / "data" for name in ("first", "second")]
    with ExitStack() as running, pytest.MonkeyPatch.context() as environment:
        pooler = running.enter_context(engines.pgbouncer(postgres.port, sessions=10))
        redis = running.enter_context(engines.redis())
        migrated_database(postgres.port, "machines")
        environment.setenv("DATABASE_URL", f"postgres://slipway@127.0.0.1:{pooler.port}/machines")
        environment.setenv("REDIS_URL", f"redis://127.0.0.1:{redis.port}/0")
        environment.setenv("SLIPWAY_SHARED", str(tmp_path_factory.mktemp("shared")))
        for key in ("SECRET", "CONTROL", "INFER"):
            environment.setenv(f"SLIPWAY_{key}_KEY", KEY if key == "CONTROL" else key * 8)
        token = finished(folders[0], "manage.py", "shell", "--no-imports", "-c", PREPARE + SERVER)
        first, _ = running.enter_context(listening(folders[0], "-m", "daphne"))

        def start(machine: int, *arguments: str) -> "subprocess.Popen[str]":
            process = run(folders[machine], *arguments, output=subprocess.DEVNULL)
            running.callback(process.wait, PATIENCE_S)
            running.callback(end, process)
            return process

        yield Machines(first, token, folders, postgres, start)


def end(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        for number in (signal.SIGCONT, signal.SIGKILL):
            process.send_signal(number)


def mark(folder: Path, table: str) -> bytes:
    with suppress(FileNotFoundError):
        return (folder / "changes" / table).read_bytes()
    return b""


def test_a_change_on_one_machine_reaches_the_other_once(machines: Machines) -> None:
    before = mark(machines.folders[0], "dashboard_model")
    finished(machines.folders[1], "manage.py", "shell", "--no-imports", "-c", CHANGE)
    own = mark(machines.folders[1], "dashboard_model")
    wait_until(lambda: mark(machines.folders[0], "dashboard_model") != before, 5.0, "the mark of the other machine")
    assert machines.get("models")["results"][0]["name"] == "of_the_other"
    assert mark(machines.folders[1], "dashboard_model") == own, "a machine does not hear itself"


def test_each_machine_tells_which_process_of_which_machine_is_silent_and_forgets_one_that_ended(
    machines: Machines,
) -> None:
    # The last one tells what becomes of the one that is stopped, whose machine has no page of its own.
    workers = here, killed, there, _ = [machines.worker(machine) for machine in (0, 0, 1, 1)]
    wait_until(lambda: all(machines.known(one.pid) for one in workers), START_TIMEOUT_S, "the workers")
    there.send_signal(signal.SIGSTOP)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    machines.database.signal(signal.SIGSTOP)  # nothing is said of a machine that cannot be heard
    here.send_signal(signal.SIGTERM)
    psutil.Process(here.pid).wait(PATIENCE_S)
    machines.database.signal(signal.SIGCONT)
    wait_until(lambda: machines.ask("processes").is_success, PATIENCE_S, "the database's return")
    wait_until(lambda: machines.silent() == {there.pid, killed.pid}, PATIENCE_S, "the stopped and the killed worker")
    assert not machines.known(here.pid), "it ended"
    page = httpx.get(f"{machines.first}/health", trust_env=False, timeout=PATIENCE_S)
    assert page.status_code in (200, 302)
    asks = LOST.format(processes=(killed.pid, there.pid))
    assert finished(machines.folders[1], "manage.py", "shell", "--no-imports", "-c", asks) == "1 queued running"
    there.send_signal(signal.SIGCONT)
    wait_until(lambda: machines.silent() == {killed.pid}, PATIENCE_S, "the worker that goes on")
    assert os.uname().nodename in str(machines.get("processes")["results"])


@pytest.fixture
def relay(machines: Machines, tmp_path: Path) -> Iterator[Relay]:
    """A relay in front of a server that the watchers drive."""
    flags = ("--model-control-mode=explicit", f"--http-restricted-api=model-repository:slipway-control-key={KEY}")
    with ServerProcess(tmp_path, *flags) as server, Relay() as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        relay.target = int(server.http.rpartition(":")[2])
        machines.serve(f"http://127.0.0.1:{relay.server_address[1]}", server.metrics_url)
        yield relay
        relay.go.set()
        relay.shutdown()


def test_one_watcher_leads_and_another_when_it_is_stopped_cut_off_or_killed(
    machines: Machines, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leads(
        watcher: "subprocess.Popen[str]", after: int, further: Callable[[int], bool] = lambda number: True
    ) -> int:
        """Wait until a watcher leads with a higher number, and return that: on a busy machine they may change in between."""
        found = wait_until(
            lambda: (
                (lease := machines.leader())[0] == watcher.pid and lease[1] > after and further(lease[1]) and lease[1]
            ),
            START_TIMEOUT_S,
            f"the lease of {watcher.pid} after number {after}",
        )
        assert isinstance(found, int)
        return found

    def serves(watcher: "subprocess.Popen[str]", after: int) -> int:
        """Wait until the server has answered the watcher that leads, as `leads`."""
        return leads(watcher, after, lambda number: (number, 200) in relay.answers)

    first = machines.start(0, "manage.py", "watch")
    serves(first, 0)
    relay.hold.set()
    late = wait_until(lambda: relay.kept, what="a call of the first one that is under way")
    first.send_signal(signal.SIGSTOP)
    with engines.pgbouncer(machines.database.port, sessions=10) as own_way:
        monkeypatch.setenv("DATABASE_URL", f"postgres://slipway@127.0.0.1:{own_way.port}/machines")
        second = machines.start(1, "manage.py", "watch")
        later = serves(second, late)
        relay.go.set()
        wait_until(lambda: (late, 409) in relay.answers, what="the refusal of the late call")
        first.send_signal(signal.SIGCONT)
        wait_until(lambda: "lost the lease" in machines.errors(0), START_TIMEOUT_S, "the first one to notice it")
        wait_until(lambda: machines.leading() == {first.pid: False, second.pid: True}, what="who leads and who follows")
        own_way.signal(signal.SIGSTOP)
        number = leads(first, later)
        own_way.signal(signal.SIGCONT)
        wait_until(lambda: "lost the lease" in machines.errors(1), START_TIMEOUT_S, "the second one to notice it")
        first.kill()
        leads(second, number)
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE_S) == 0
        assert machines.leader() == (0, 0), "a watcher that ends gives the lease up"


def test_the_doctor_looks_at_clock_sessions_and_installation(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgres://slipway@127.0.0.1:{machines.database.port}/machines")
    told = finished(machines.folders[1], "manage.py", "shell", "--no-imports", "-c", DOCTOR)
    well, ill = told.splitlines()[:3], told.splitlines()[3:]
    assert well == ["installation ok", "clock ok", "sessions ok"]
    assert ill[0] == "installation ok"
    assert ill[1].startswith("clock wrong The clock of this machine is 90 s ahead of the database's: synchronise both")
    assert "sessions of PostgreSQL are in use: raise max_connections" in ill[2]
    assert "processes may open 2004 sessions" in ill[2]
    assert "set max_connections to 2007 or more" in ill[2]


def test_two_machines_run_a_bundled_server_each_and_one_watcher_drives_both(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    ups = []
    monkeypatch.setenv("SLIPWAY_REQUIRE_TOKENS", "1")  # each then keeps a log of usage, which has one writer
    monkeypatch.setenv("SERVING_COMPILED", "no")
    for machine, parts in enumerate(("watch,server", "server")):
        for name, port in zip(("PORT", "HTTP_PORT", "GRPC_PORT", "METRICS_PORT"), free_ports(4), strict=True):
            monkeypatch.setenv(f"SLIPWAY_{name}", str(port))
        ups.append(machines.start(machine, "manage.py", "up", f"--only={parts}"))
    try:
        wait_until(lambda: set(serving(machines)) == {"local", "local-2"}, START_TIMEOUT_S * 2, "both servers")
        wait_until(lambda: min(serving(machines).values()) > 0, START_TIMEOUT_S * 2, "the models on both")
    finally:
        for up in ups:
            up.send_signal(signal.SIGTERM)
        for up in ups:
            up.wait(PATIENCE_S)


def serving(machines: Machines) -> dict[str, int]:
    """Return how many versions each server has that has answered as ready."""
    found = machines.get("servers")["results"]
    ready = [one for one in found if one["state"] and one["state"]["state"] == "ready"]  # type: ignore[index]
    return {str(one["name"]): int(str(one["model_count"])) for one in ready}
