"""Two machines with data folders of their own on one PostgreSQL, behind PgBouncer, see each other's changes and heartbeats."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import psycopg
import pytest

from tests.dashboard.test_other_databases import PREPARE
from tests.dashboard.web_process import finished, listening, run
from tests.support import engines
from tests.support.ports import free_ports
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

pytestmark = pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}")

CHANGE = """
from dashboard.models import Model
Model.objects.create(name="of_the_other")
"""


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

    def silent(self) -> list[str]:
        found = self.get("processes")["results"]
        return [f"{one['name']} {one['pid']} {one['silent']}" for one in found if one["silent"]]

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
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folders = [tmp_path_factory.mktemp(name) / "data" for name in ("first", "second")]
    with ExitStack() as running, pytest.MonkeyPatch.context() as environment:
        database = running.enter_context(engines.postgres())
        pooler = running.enter_context(engines.pgbouncer(database.port, sessions=10))
        redis = running.enter_context(engines.redis())
        engines.new_database(database.port, "machines")
        environment.setenv("DATABASE_URL", f"postgres://slipway@127.0.0.1:{pooler.port}/machines")
        environment.setenv("REDIS_URL", f"redis://127.0.0.1:{redis.port}/0")
        environment.setenv("SLIPWAY_SHARED", str(tmp_path_factory.mktemp("shared")))
        for key in ("SECRET", "CONTROL", "INFER"):
            environment.setenv(f"SLIPWAY_{key}_KEY", key * 8)
        finished(folders[0], "manage.py", "migrate", "-v0")
        token = finished(folders[0], "manage.py", "shell", "--no-imports", "-c", PREPARE)
        first, _ = running.enter_context(listening(folders[0], "-m", "daphne"))

        def start(machine: int, *arguments: str) -> "subprocess.Popen[str]":
            process = run(folders[machine], *arguments, output=subprocess.DEVNULL)
            running.callback(process.wait, PATIENCE_S)
            running.callback(end, process)
            return process

        yield Machines(first, token, folders, database, start)


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
    here, there = machines.worker(0), machines.worker(1)
    wait_until(lambda: machines.known(here.pid) and machines.known(there.pid), START_TIMEOUT_S, "both workers")
    other = machines.worker(1)  # it tells what becomes of the one that is stopped, and has no page of its own
    wait_until(lambda: machines.known(other.pid), START_TIMEOUT_S, "the third worker")
    there.send_signal(signal.SIGSTOP)
    machines.database.signal(signal.SIGSTOP)  # nothing is said of a machine that cannot be heard
    here.send_signal(signal.SIGTERM)
    psutil.Process(here.pid).wait(PATIENCE_S)
    machines.database.signal(signal.SIGCONT)
    wait_until(lambda: machines.ask("processes").is_success, PATIENCE_S, "the database's return")
    wait_until(lambda: machines.silent() == [f"worker {there.pid} True"], PATIENCE_S, "the stopped worker")
    assert not machines.known(here.pid), "it ended"
    page = httpx.get(f"{machines.first}/health", trust_env=False, timeout=PATIENCE_S)
    assert page.status_code in (200, 302)
    there.send_signal(signal.SIGCONT)
    wait_until(lambda: not machines.silent(), PATIENCE_S, "the worker that goes on")
    other.send_signal(signal.SIGKILL)
    other.wait()
    wait_until(lambda: machines.silent() == [f"worker {other.pid} True"], PATIENCE_S, "the killed worker")
    assert os.uname().nodename in str(machines.get("processes")["results"])


def test_one_watcher_leads_and_another_when_it_is_stopped_cut_off_or_killed(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leads(watcher: "subprocess.Popen[str]", after: int) -> int:
        """Wait until a watcher leads with a higher number, and return that: on a busy machine they may change in between."""
        found = wait_until(
            lambda: (lease := machines.leader())[0] == watcher.pid and lease[1] > after and lease[1],
            START_TIMEOUT_S,
            f"the lease of {watcher.pid} after number {after}",
        )
        assert isinstance(found, int)
        return found

    first = machines.start(0, "manage.py", "watch")
    number = leads(first, 0)
    with engines.pgbouncer(machines.database.port, sessions=10) as own_way:
        monkeypatch.setenv("DATABASE_URL", f"postgres://slipway@127.0.0.1:{own_way.port}/machines")
        second = machines.start(1, "manage.py", "watch")
        wait_until(lambda: machines.known(second.pid), START_TIMEOUT_S, "the second watcher")
        first.send_signal(signal.SIGSTOP)
        number = leads(second, number)
        first.send_signal(signal.SIGCONT)
        wait_until(lambda: "lost the lease" in machines.errors(0), START_TIMEOUT_S, "the first one to notice it")
        own_way.signal(signal.SIGSTOP)
        number = leads(first, number)
        own_way.signal(signal.SIGCONT)
        wait_until(lambda: "lost the lease" in machines.errors(1), START_TIMEOUT_S, "the second one to notice it")
        first.kill()
        leads(second, number)
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE_S) == 0
        assert machines.leader() == (0, 0), "a watcher that ends gives the lease up"


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
    return {str(one["name"]): int(str(one["model_count"])) for one in found if one["state"]["state"] == "ready"}  # type: ignore[index]
