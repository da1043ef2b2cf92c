"""The dashboard's web process alone, on a data folder of the test's own; its log is in the file `errors` beside that."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from django.conf import settings

from tests.support import engines
from tests.support.made_once import made_once
from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until


def run(data: Path, *arguments: str, output: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    environment = {**os.environ, "SLIPWAY_DATA": str(data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    command = [sys.executable, *arguments]
    with (data.parent / "errors").open("ab") as errors:
        return subprocess.Popen(
            command, cwd=settings.BASE_DIR, env=environment, stdout=output, stderr=errors, text=True
        )


def finished(data: Path, *arguments: str) -> str:
    with run(data, *arguments) as process:
        output = process.communicate(timeout=START_TIMEOUT_S)[0]
    assert process.returncode == 0
    return output.strip()


def migrate(data: Path) -> None:
    """Make a data folder with an empty database. The migrations run once in a run of tests, because they take seconds."""
    data.mkdir()
    shutil.copy(migrated() / "db.sqlite3", data)


def migrated() -> Path:
    """Return the data folder whose database is migrated. Who changes it copies it."""
    return made_once("migrated", _migrate)


def _migrate(data: Path) -> None:
    finished(data, "manage.py", "migrate", "-v0")


def migrated_database(port: int, name: str) -> str:
    """Make a database of PostgreSQL with every table, and return its address. The migrations run once in a run of tests."""
    dump, address = made_once("migrated.sql", lambda path: _dump(path, port)), engines.new_database(port, name)
    command = [engines.POSTGRES_BIN / "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", address]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return address


def _dump(path: Path, port: int) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DATABASE_URL", engines.new_database(port, "migrated"))
        _migrate(path.parent / "data")
        subprocess.run([engines.POSTGRES_BIN / "pg_dump", f"--file={path}", os.environ["DATABASE_URL"]], check=True)


@contextlib.contextmanager
def listening(data: Path, *program: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address and the process of a dashboard on this data folder."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    where = ("-b", "127.0.0.1", "-p", str(port), "dashboard.asgi:application")
    # Nobody reads what it writes: a full pipe would stop it at its next line.
    with run(data, *program, *where, output=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(address) or process.poll() is not None, START_TIMEOUT_S, "an answer")
            assert process.poll() is None
            yield address, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", trust_env=False, timeout=PATIENCE_S).status_code == 200
    except httpx.HTTPError:
        return False
