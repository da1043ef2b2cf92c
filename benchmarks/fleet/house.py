"""One real `manage.py watch` with a real PostgreSQL, and stand-ins for the servers of production."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import psycopg
from django.utils import timezone

from tests.support import engines
from tests.support.model_factory import onnx_scale
from tests.support.ports import HOST, free_port, free_ports
from tests.support.serving_process import ROOT, wait_until

LONG_S = 300.0  # the longest wait for a condition
# `manage.py watch` with a lease that outlasts the pauses of a machine on which other programs run.
WATCH = """
import sys
from dashboard.watch import lease, watcher
lease.LEASE_S = watcher.LEASE_S = 60.0
sys.argv = ["manage.py", "watch"]
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
LOCAL = {"trust_env": False, "timeout": 10.0}


class Web(NamedTuple):
    """A web process, and the session of a person with all rights."""

    url: str
    cookies: dict[str, str]
    process: psutil.Process


class House:
    """A dashboard without worker, and with a web process on request. Its servers are named by their ports.

    ready: whether the servers serve all models at the start, so that many models take no first loads.
    """

    def __init__(self, servers: int, models: int, busy: int, ready: bool = False) -> None:
        self.ports = free_ports(servers)
        self._models, self._busy, self._ready = models, busy, ready
        self._stack = ExitStack()
        self._folder = Path()
        self._programs: dict[str, psutil.Process] = {}

    def __enter__(self) -> "House":
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="slipway-fleet-")))
        counted = ("shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=top")
        self._engine = self._stack.enter_context(engines.postgres(*counted))
        self.database = engines.new_database(self._engine.port, "fleet")
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
        os.environ |= {
            "DATABASE_URL": self.database,
            "SLIPWAY_DATA": str(self._folder / "data"),
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            **{f"SLIPWAY_{name}_KEY": secrets.token_hex(32) for name in ("SECRET", "CONTROL", "INFER")},
        }
        import django

        django.setup()
        self._fill()
        self._start()
        return self

    def _start(self) -> None:
        self._start_stand_ins(*(["--loaded"] if self._ready else []))
        self._program("watch", "-c", "import django; django.setup()" + WATCH)

    def _start_stand_ins(self, *more: str) -> None:
        command = ("-m", "benchmarks.fleet.stand_in", *more, *self._given())
        self._program("stand_ins", *command, stdin=subprocess.PIPE)
        wait_until(lambda: self._answers(self.ports[-1]), LONG_S, "the stand-ins")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for log in sorted(self._folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        self._stack.close()

    def _given(self) -> list[str]:
        from django.conf import settings

        ports = [str(port) for port in self.ports]
        return [str(settings.MODEL_REPOSITORY), "--key", "key", "--busy", str(self._busy), "--ports", *ports]

    def _program(self, name: str, *arguments: str, **how: Any) -> psutil.Process:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=log, **how)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        self._orders = process.stdin or getattr(self, "_orders", None)
        self._programs[name] = psutil.Process(process.pid)
        return self._programs[name]

    def _fill(self) -> None:
        from django.conf import settings
        from django.contrib.auth import get_user_model
        from django.core.management import call_command

        from dashboard.access.authorisation import Actor
        from dashboard.catalog.services import model_load
        from dashboard.configuration.drift import model_adopt
        from dashboard.models import Server, ServerEnvironment, ServerState
        from dashboard.shared.sealing import seal

        call_command("migrate", verbosity=0)
        self.actor = Actor(user=get_user_model().objects.create_superuser("admin"))
        production = ServerEnvironment.objects.get(name="production")
        production.control_key = seal("key")
        production.save()
        for port in self.ports:
            address = f"http://{HOST}:{port}"
            row = {"http_url": address, "metrics_url": address, "grpc_url": f"{HOST}:{port}", "environment": production}
            ServerState.objects.create(server=Server.objects.create(name=f"s-{port}", **row))
        for number in range(1 if self._ready else self._models):
            name = f"model-{number:04}"
            onnx_scale(Path(settings.MODEL_REPOSITORY), name)
            model_load(model=model_adopt(name=name, actor=self.actor), actor=self.actor)
        if self._ready:
            self._copy_model()

    def _copy_model(self) -> None:
        """Make all other models as copies of the first, which every server has loaded."""
        from django.conf import settings

        from dashboard.models import Model, ModelState, ModelSync, Release, ReleaseCheck, ReleaseSpan, Server, Version

        folder, first = Path(settings.MODEL_REPOSITORY), Model.objects.get()
        [version], [release] = Version.objects.values(), Release.objects.values()
        names = [f"model-{number:04}" for number in range(1, self._models)]
        for name in names:
            shutil.copytree(folder / first.name, folder / name, copy_function=os.link)
        row = Model.objects.values().get()
        copies = Model.objects.bulk_create(Model(**row | {"id": None, "name": name}) for name in names)
        for kind, of_first in ((Version, version), (Release, release)):
            kind.objects.bulk_create(kind(**of_first | {"id": None, "model_id": one.pk}) for one in copies)
        releases, now = list(Release.objects.values_list("model", "pk", "model__name")), timezone.now()
        for server in Server.objects.all():
            applied = {"applied_generation": first.generation, "server": server, "attempted_at": now}
            passed = {"server": server, "state": "passed", "started_at": now, "ended_at": now}
            rows: list[Any] = []
            for model, pk, name in releases:
                rows += [
                    ModelSync(model_id=model, release_id=pk, **applied),
                    ReleaseSpan(model_id=model, release_id=pk, server=server, started_at=now),
                    ReleaseCheck(release_id=pk, **passed),
                    ModelState(server=server, model_name=name, version=1, state="READY"),
                ]
            for kind in (ModelSync, ReleaseSpan, ReleaseCheck, ModelState):
                kind.objects.bulk_create((row for row in rows if isinstance(row, kind)), batch_size=1000)

    def web(self) -> Web:
        """Start a web process."""
        from django.conf import settings
        from django.test import Client

        port = free_port()
        where = ("-b", HOST, "-p", str(port), "dashboard.asgi:application")
        process = self._program("web", "-m", "daphne", *where)
        wait_until(lambda: self._answers(port, "/readyz"), LONG_S, "the web process")
        client = Client()
        client.force_login(self.actor.user)
        cookies = {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}
        return Web(f"http://{HOST}:{port}", cookies, process)

    # -- changes and their arrival ---------------------------------------------------------------------------------
    def publish(self, name: str) -> tuple[int, float]:
        """Make another release of a model, as if its files were changed by hand; return its number and when it was."""
        from django.conf import settings

        from dashboard.configuration.drift import drift_adopt
        from dashboard.models import Model

        model = Model.objects.get(name=name)
        onnx_scale(Path(settings.MODEL_REPOSITORY), name, version=model.last_number + 1, config=None)
        release = drift_adopt(model=model, actor=self.actor)
        return release.number, time.time()

    def behave(self, mode: str, ports: list[int]) -> None:
        self._orders.write(f"{mode} {' '.join(map(str, ports))}\n".encode())
        self._orders.flush()

    def arrivals(self, name: str, release: int, ports: list[int]) -> dict[int, float]:
        """Return when each server had loaded a release, by its port, for those that have."""
        with httpx.Client(**LOCAL) as client:
            told = {port: client.get(f"http://{HOST}:{port}/stand-in/loads").json() for port in ports}
        return {
            port: min(at)
            for port, rows in told.items()
            if (at := [row[2] for row in rows if row[:2] == [name, release]])
        }

    def arrived(self, name: str, release: int, ports: list[int]) -> dict[int, float]:
        found: dict[int, float] = {}

        def all_have() -> bool:
            found.update(self.arrivals(name, release, [port for port in ports if port not in found]))
            time.sleep(0.2)
            return len(found) == len(ports)

        wait_until(all_have, LONG_S, f"release {release} of {name} on {len(ports)} servers")
        return found

    def settled(self) -> None:
        """Wait until the database says that every server serves every model, and is ready."""
        wanted, servers = self._models * len(self.ports), len(self.ports)
        wait_until(
            lambda: (
                self._pause()
                or (
                    self.count("modelstate WHERE state = 'READY'") == wanted
                    and self.count("serverstate WHERE state = 'ready'") == servers
                )
            ),
            LONG_S,
            "all models",
        )

    def _pause(self) -> None:
        assert self._watch.is_running(), (self._folder / "watch.log").read_text()[-2000:]
        time.sleep(0.5)

    def count(self, rows: str) -> int:
        with psycopg.connect(self.database) as connection:
            found = connection.execute(f"SELECT count(*) FROM dashboard_{rows}").fetchone()  # type: ignore[arg-type]
        return int(found[0]) if found else 0

    # -- costs -----------------------------------------------------------------------------------------------------
    def cost(self, work: Callable[[], object]) -> dict[str, float]:
        """Return what `watch` and PostgreSQL spent while something was done, for each second."""
        began = time.monotonic()
        spent = self.spent(work)
        seconds = time.monotonic() - began
        return {name: value / seconds for name, value in spent.items()}

    def spent(self, work: Callable[[], object]) -> dict[str, float]:
        """Return what the processes spent while something was done, in seconds of CPU time and statements."""
        before = self._spent()
        work()
        return {name: value - before[name] for name, value in self._spent().items()}

    def _spent(self) -> dict[str, float]:
        with psycopg.connect(self.database) as connection:
            calls = connection.execute("SELECT sum(calls) FROM pg_stat_statements").fetchone()
            size = connection.execute("SELECT pg_total_relation_size('dashboard_metricsample')").fetchone()
        assert calls is not None
        assert size is not None
        engine = 0.0
        for process in self._engine.processes():
            with suppress(psutil.NoSuchProcess):  # a session that has just ended
                engine += sum(process.cpu_times()[:4])
        return {
            **{name: sum(process.cpu_times()[:2]) for name, process in self._programs.items()},
            "postgres": engine,
            "statements": float(calls[0] or 0),
            "samples": float(self.count("metricsample")),
            "bytes": float(size[0]),
        }

    def resources(self) -> str:
        sockets = len(self._watch.net_connections())
        return f"{self._watch.memory_info().rss >> 20} MiB resident, {sockets} sockets, {self._watch.num_threads()} threads"

    def statements(self, most: int = 12) -> list[tuple[int, str]]:
        with psycopg.connect(self.database) as connection:
            query = "SELECT calls, left(query, 150) FROM pg_stat_statements ORDER BY calls DESC LIMIT %s"
            return [(int(calls), str(text)) for calls, text in connection.execute(query, (most,))]

    def forget_statements(self) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_statements_reset()")

    @property
    def _watch(self) -> psutil.Process:
        return self._programs["watch"]

    @property
    def watch_pid(self) -> int:
        return self._watch.pid

    @property
    def log(self) -> str:
        return (self._folder / "watch.log").read_text(errors="replace")

    def _answers(self, port: int, path: str = "/v2") -> bool:
        try:
            return httpx.get(f"http://{HOST}:{port}{path}", **LOCAL).status_code == 200
        except httpx.HTTPError:
            time.sleep(0.2)
            return False
