"""Real processes for the dashboard's tests: an inference server at fixed ports, and a whole `manage.py up`."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.models import Server, ServerState
from tests.ports import HOST, free_ports
from tests.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S, ServerProcess, descendants, wait_until

PORT_SETTINGS = ("SLIPWAY_PORT", "SLIPWAY_HTTP_PORT", "SLIPWAY_GRPC_PORT", "SLIPWAY_METRICS_PORT")


class FixedServer:
    """An inference server, as `up` would start it, that may go and come back at the same addresses."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._http, self._grpc, self._metrics = free_ports(3)
        self.process: ServerProcess | None = None

    def addresses(self) -> dict[str, str]:
        """As the columns of its row."""
        return {
            "http_url": f"http://{HOST}:{self._http}",
            "grpc_url": f"{HOST}:{self._grpc}",
            "metrics_url": f"http://{HOST}:{self._metrics}",
        }

    def row(self) -> Server:
        """The server's row in the database."""
        server = Server.objects.create(name="local", bundled=True, **self.addresses())
        ServerState.objects.create(server=server)
        return server

    def start(self, *flags: str) -> ServerProcess:
        key = f"{settings.SERVER_CONTROL_HEADER}={settings.SERVER_CONTROL_KEY}"
        self.process = ServerProcess(
            self._repository,
            "--model-control-mode=explicit",
            f"--http-port={self._http}",
            f"--grpc-port={self._grpc}",
            f"--metrics-port={self._metrics}",
            f"--http-restricted-api=model-repository:{key}",
            *flags,
            wait="live",
        )
        return self.process.start()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()


@contextmanager
def fixed_server(repository: Path) -> Iterator[FixedServer]:
    """Not started yet; ended with the block."""
    repository.mkdir(exist_ok=True)
    server = FixedServer(repository)
    try:
        yield server
    finally:
        server.close()


class Up:
    """`manage.py up` on a data folder and ports of its own."""

    def __init__(self, data: Path, ports: list[int] | None = None, **environment: str) -> None:
        self.data = data
        self.ports = ports or free_ports(4)
        numbers = {name: str(port) for name, port in zip(PORT_SETTINGS, self.ports, strict=True)}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        self.environment = {
            **inherited,
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SLIPWAY_DATA": str(data),
            **numbers,
            **environment,
        }
        self._output = Path(tempfile.mkstemp(prefix="slipway-up-")[1])
        self.process: subprocess.Popen[bytes] | None = None

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self, wait: bool = True) -> "Up":
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if wait:
            wait_until(lambda: self._is_up(), START_TIMEOUT_S, "everything answers")
        return self

    def _is_up(self) -> bool:
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

    # -- what it says ----------------------------------------------------------------------------------------------
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

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.data / 'db.sqlite3'}?mode=rw", uri=True, timeout=PATIENCE_S)
        try:
            with connection:
                return connection.execute(sql, values).fetchall()
        finally:
            connection.close()
