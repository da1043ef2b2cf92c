"""A whole `manage.py up` in a process of its own, for tests and for `make soak`."""

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

from tests.support.frontend_workers import FLAGS
from tests.support.made_once import made_once
from tests.support.ports import HOST, free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S, descendants, wait_until

PORT_SETTINGS = ("SLIPWAY_PORT", "SLIPWAY_HTTP_PORT", "SLIPWAY_GRPC_PORT", "SLIPWAY_METRICS_PORT")


PREPARE = """
import django; django.setup()
from dashboard.supervisor import setup
setup.administrator_ensure = lambda: None  # each start makes its own
problem = setup.prepare().problem
assert not problem, problem
"""


def _prepare(data: Path) -> None:
    with Up(data) as up:
        done = subprocess.run(
            [sys.executable, "-c", PREPARE],
            cwd=up.root,
            env=up.environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


class Up:
    """`manage.py up` with its own data folder and ports. root: the checkout to run."""

    def __init__(self, data: Path, ports: list[int] | None = None, root: Path = ROOT, **environment: str) -> None:
        self.data = data
        self.root = root
        self.ports = ports or free_ports(4)
        numbers = {name: str(port) for name, port in zip(PORT_SETTINGS, self.ports, strict=True)}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        self.environment = {
            **inherited,
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SLIPWAY_DATA": str(data),
            **numbers,
            **environment,
            "SLIPWAY_SERVER_FLAGS": " ".join([environment.get("SLIPWAY_SERVER_FLAGS", ""), *FLAGS]),
        }
        self._output = Path(tempfile.mkstemp(prefix="slipway-up-")[1])
        self.process: subprocess.Popen[bytes] | None = None

    def prepared(self, wanted: Collection[str] | None = None) -> "Up":
        """Give this one the data folder that another start has prepared: all but its administrator.

        Each start would spend ten seconds of a core on the same migrations and on publishing the same examples. wanted: the
        names of those examples that are loaded, by default all; each start of the server would import PyTorch for them.
        """
        shutil.copytree(made_once("prepared", _prepare), self.data, dirs_exist_ok=True)
        if wanted is not None:
            names = ", ".join("?" * len(wanted))
            unwanted = f"UPDATE dashboard_model SET desired_state = 'unloaded' WHERE name NOT IN ({names})"
            self.query(unwanted, *wanted)
        return self

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self, *arguments: str, wait: bool = True) -> "Up":
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *arguments],
                cwd=self.root,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if wait:
            try:
                wait_until(lambda: self.is_up(), START_TIMEOUT_S, "everything answers")
            except BaseException:  # the caller has no object yet to close
                if self.process.poll() is None:
                    self.stop(signal.SIGTERM)
                raise
        return self

    def is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output
        return "Ctrl-C stops everything" in self.output

    def stop(self, number: int = signal.SIGINT) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(START_TIMEOUT_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGTERM)
        self._output.unlink()

    def __enter__(self) -> "Up":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- state -----------------------------------------------------------------------------------------------------
    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.ports[1]}"

    @property
    def dashboard_url(self) -> str:
        return f"http://{HOST}:{self.ports[0]}"

    @property
    def password(self) -> str:
        found = re.search(r"with the password (\S+)", self.output)
        return found.group(1) if found else ""

    def processes(self) -> set[int]:
        return descendants(self.pid)

    def running(self, *words: str) -> list[int]:
        """Return the ids of the processes whose command lines contain these words."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(psutil.Error):  # the process has just ended
                if set(words) <= {Path(part).name for part in psutil.Process(pid).cmdline()}:
                    found.append(pid)
        return found

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.data / 'db.sqlite3'}?mode=rw", uri=True, timeout=PATIENCE_S)
        try:
            with connection:
                return connection.execute(sql, values).fetchall()
        finally:
            connection.close()
