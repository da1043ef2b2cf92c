"""Real PostgreSQL, PgBouncer, Redis and HAProxy on free ports, which a test may freeze, kill and start again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import psycopg.sql

from tests.support.made_once import made_once
from tests.support.ports import HOST, free_port
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

POSTGRES_BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("missing"))
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
MISSING = [
    package
    for package, found in (
        ("postgresql", POSTGRES_BIN.exists()),
        ("pgbouncer", PGBOUNCER),
        ("redis-server", shutil.which("redis-server")),
    )
    if not found
]
# PostgreSQL and PgBouncer do not run as root, so `nobody` runs them, in a folder that `nobody` reaches.
_USER = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


class Engine:
    """A program that listens on a port, whose processes are frozen together."""

    def __init__(self, *command: Any, port: int, end: signal.Signals = signal.SIGINT, **how: Any) -> None:
        self.port, self._end = port, end
        self._command, self._how = [str(part) for part in command], how
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command, **quiet, **self._how)
        wait_until(lambda: _listens(self.port), START_TIMEOUT_S, f"the answer of {self._command[0]}")

    def processes(self) -> list[psutil.Process]:
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self._process.send_signal(self._end)
            self._process.wait(PATIENCE_S)


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"slipway-{name}-", ignore_cleanup_errors=True) as made:
        if _USER:
            shutil.chown(made, *_USER.values())
        yield Path(made)


@contextlib.contextmanager
def postgres(*settings: str) -> Iterator[Engine]:
    """Yield PostgreSQL with the superuser `slipway` and these settings, such as "max_connections=50"."""
    port = free_port()
    with _folder("postgres") as folder:
        shutil.copytree(made_once("postgres", _initialise), folder / "data")
        for path in (folder / "data", *(folder / "data").rglob("*")) if _USER else ():
            shutil.chown(path, *_USER.values())
        given = [part for setting in settings for part in ("-c", setting)]
        command = (POSTGRES_BIN / "postgres", "-D", "data", "-k", "", "-h", "127.0.0.1", "-p", port, "-F", *given)
        engine = Engine(*command, port=port, cwd=folder, **_USER)
        engine.start()
        address = f"postgres://slipway@127.0.0.1:{port}/postgres"
        try:
            wait_until(lambda: _accepts(address), START_TIMEOUT_S, "a session of PostgreSQL")
            yield engine
        finally:
            engine.stop()


def _initialise(data: Path) -> None:
    """Make the folder of an empty PostgreSQL, once in a run of tests, because that takes a second."""
    with _folder("initdb") as folder:
        initdb = (POSTGRES_BIN / "initdb", "-D", "data", "-U", "slipway", "-A", "trust", "--no-sync", "--no-locale")
        made = subprocess.run(
            [*initdb, "-EUTF8"], cwd=folder, check=False, capture_output=True, timeout=START_TIMEOUT_S, **_USER
        )
        assert made.returncode == 0, made.stderr
        shutil.copytree(folder / "data", data)


def _accepts(address: str) -> bool:
    try:
        psycopg.connect(address, connect_timeout=5).close()
    except psycopg.Error:
        return False
    return True


def new_database(port: int, name: str) -> str:
    """Make an empty database, and return its address."""
    address = f"postgres://slipway@127.0.0.1:{port}"
    with psycopg.connect(f"{address}/postgres", autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return f"{address}/{name}"


@contextlib.contextmanager
def pgbouncer(behind: int, sessions: int) -> Iterator[Engine]:
    """Yield a PgBouncer in transaction mode in front of PostgreSQL at the port `behind`."""
    port = free_port()
    with _folder("pgbouncer") as folder:
        (folder / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={behind} user=slipway\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nauth_type = any\npool_mode = transaction\nmax_client_conn = 1000\n"
            f"default_pool_size = {sessions}\nserver_login_retry = 1\n"
        )
        (folder / "ini").chmod(0o644)
        engine = Engine(PGBOUNCER, "ini", port=port, cwd=folder, **_USER)
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()


@contextlib.contextmanager
def redis() -> Iterator[Engine]:
    """Yield a Redis that keeps nothing when it ends."""
    port = free_port()
    with _folder("redis") as folder:
        engine = Engine("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", port=port, cwd=folder)
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()


@contextlib.contextmanager
def haproxy(configuration: str, port: int) -> Iterator[Engine]:
    """Yield a HAProxy with this configuration, which listens on the port."""
    with _folder("haproxy") as folder:
        (folder / "cfg").write_text(configuration)
        engine = Engine(HAPROXY, "-db", "-f", folder / "cfg", port=port, end=signal.SIGTERM, cwd=folder)
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()
