"""Counts what fails while one release replaces another on one PostgreSQL and Redis, and while it goes back, under traffic.

    python -m benchmarks.upgrade --older main~50

The older program is a revision of git, the newer one the working tree, whose version is raised if both have the same. Each of
two machines has a web process, a worker and a watcher. People read pages, programs read over REST, jobs publish models that are
then asked and deleted, and clients ask the inference server. Each request goes to one of the web processes by chance, so that
one visit meets both releases. The newer release migrates, replaces every process of one machine, then of the other; then the
older one comes back in the same way, on the newer tables, and at last the newer one again. If the newer tree has no migration
that the older one lacks, one is made that expands the tables. In the end a migration takes away what the older one needs: each
of its commands must refuse in one sentence. An older release from before 0043_upgrade refuses any newer database; then only
this is checked, and the way back is left out. The exit status is 1 if anything has failed.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks.traffic import Traffic
from tests.support import engines
from tests.support.model_factory import onnx_scale
from tests.support.ports import HOST, free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S, ServerProcess, wait_until
from tests.support.up_process import PORT_SETTINGS

FOLDERS = ("dashboard", "serving", "repository", "templates", "static", "tools", "examples", "requirements")
VERSION = Path("repository/core/server_version.py")
PARTS = ("watch", "worker", "web")
COMMANDS = {
    "web": ("-m", "daphne", "-b", HOST, "-p", "{port}", "dashboard.asgi:application"),
    "worker": (
        "-m",
        "celery",
        "-A",
        "dashboard",
        "--skip-checks",
        "worker",
        "--pool=threads",
        "-c4",
        "--loglevel=INFO",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ),
    "watch": ("manage.py", "watch"),
    "up": ("manage.py", "up"),
}
PREPARE = """
from django.contrib.auth import get_user_model
from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import token_create
from dashboard.models import Server, ServerState
administrator_ensure()
user = get_user_model().objects.get()
http, grpc, metrics = {ports}
server = Server.objects.create(name="local", bundled=True, http_url=f"http://127.0.0.1:{{http}}",
    grpc_url=f"127.0.0.1:{{grpc}}", metrics_url=f"http://127.0.0.1:{{metrics}}")
ServerState.objects.create(server=server)
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read", "write", "upload_code", "admin"])[1])
"""
# Each model gets a row in a table that the older release does not know.
EXPANDS = """from django.db import migrations, models
class Migration(migrations.Migration):
    dependencies = [("dashboard", "{last}")]
    operations = [
        migrations.AddField("job", "of_the_future", models.TextField(db_default="new")),
        migrations.CreateModel("OfTheFuture", [
            ("id", models.BigAutoField(primary_key=True)), ("model", models.ForeignKey("dashboard.model", models.CASCADE)),
        ]),
        migrations.RunSQL('''
            CREATE FUNCTION keep_future() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO dashboard_ofthefuture (model_id) VALUES (NEW.id); RETURN NEW; END $$;
            CREATE TRIGGER keep_future AFTER INSERT ON dashboard_model FOR EACH ROW EXECUTE FUNCTION keep_future();
        '''),
    ]
"""
CONTRACTS = """from django.db import migrations
class Migration(migrations.Migration):
    minimum_release = "{minimum}"
    dependencies = [("dashboard", "{last}")]
    operations = [migrations.RemoveField("job", "step")]
"""


# -- the programs ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Program:
    """A release in a folder of its own."""

    root: Path
    name: str

    @property
    def version(self) -> str:
        found = re.search(r'^VERSION = "(.+)"', (self.root / VERSION).read_text(), re.MULTILINE)
        return found[1] if found else ""

    @property
    def migrations(self) -> set[str]:
        return {path.stem for path in (self.root / "dashboard" / "migrations").glob("0*.py")}

    @property
    def expects_newer(self) -> bool:
        """Return whether it reads what newer releases demand of it."""
        return (self.root / "dashboard" / "shared" / "release.py").exists()

    def takes(self, variable: str) -> bool:
        """Return whether it has this setting: an unknown one is refused."""
        known = (self.root / "dashboard" / "shared" / "environment.py").read_text()
        return not variable.startswith("SLIPWAY_") or f'"{variable}"' in known

    def with_migration(self, root: Path, text: str, version: str) -> "Program":
        """Return a copy with another migration and version."""
        shutil.copytree(self.root, root)
        last = max(self.migrations)
        name = f"{int(last[:4]) + 1:04}_of_the_future.py"
        (root / "dashboard" / "migrations" / name).write_text(text.replace("{last}", last))
        (root / VERSION).write_text((root / VERSION).read_text().replace(f'"{self.version}"', f'"{version}"'))
        return Program(root, version)


def of_revision(revision: str, root: Path) -> Program:
    packed = subprocess.run(
        ["git", "archive", revision, "manage.py", "pyproject.toml", *FOLDERS], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(root, filter="data")
    return Program(root, revision)


def of_working_tree(root: Path, version: str) -> Program:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("manage.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    if version:
        path = root / VERSION
        path.write_text(re.sub(r'^VERSION = ".+"', f'VERSION = "{version}"', path.read_text(), flags=re.MULTILINE))
    return Program(root, "the working tree")


# -- the machines ------------------------------------------------------------------------------------------------------
@dataclass
class Web:
    """A web process, as a balancer sees it."""

    port: int
    asked: int = 0  # requests under way


class Refused(Exception):
    """A program ended at its start. text: what it said."""


@dataclass
class Machines:
    """Two machines on one database. webs: those that the balancer sends requests to."""

    folder: Path
    shared: bool
    environment: dict[str, str]
    ports: list[int]
    running: dict[tuple[str, int], tuple["subprocess.Popen[bytes]", Program]] = field(default_factory=dict)
    webs: list[Web] = field(default_factory=list)

    def data(self, machine: int) -> Path:
        return self.folder / (f"data{machine}" if self.shared else "data")

    def parts(self, machine: int) -> tuple[str, ...]:
        """Return what runs on a machine. Without a shared folder both have one data folder, and that one watcher."""
        return PARTS if self.shared or machine == 0 else PARTS[1:]

    def command(self, program: Program, machine: int, *arguments: str, **more: str) -> dict[str, Any]:
        words = [word.replace("{port}", str(self.ports[machine])) for word in arguments]
        given = {**self.environment, "SLIPWAY_DATA": str(self.data(machine)), **more}
        environment = {name: value for name, value in given.items() if program.takes(name)}
        return {"args": [sys.executable, *words], "cwd": program.root, "env": environment}

    def finished(self, program: Program, *arguments: str, **more: str) -> tuple[int, str]:
        """Run a command to its end. more: settings. Return its exit status and what it said."""
        how = self.command(program, 0, *arguments, **more)
        done = subprocess.run(
            **how, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=START_TIMEOUT_S, check=False
        )
        return done.returncode, done.stdout.strip()

    def start(self, program: Program, part: str, machine: int) -> None:
        """Start a process, and wait until it works. Raises Refused if it ends."""
        log = self.folder / f"{part}{machine}.log"
        before, began = (log.stat().st_size if log.exists() else 0), time.time()
        with log.open("ab") as file:
            command = self.command(program, machine, *COMMANDS[part])
            process = subprocess.Popen(**command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        self.running[part, machine] = process, program
        wait_until(
            lambda: process.poll() is not None or self._works(part, machine, log, before, began),
            START_TIMEOUT_S,
            f"the start of {part}",
        )
        if process.poll() is not None:
            raise Refused(log.read_text()[before:].strip())
        if part == "web":
            self.webs.append(Web(self.ports[machine]))

    def _works(self, part: str, machine: int, log: Path, before: int, began: float) -> bool:
        if part == "web":
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://{HOST}:{self.ports[machine]}/sign-in", trust_env=False).status_code == 200
            return False
        if part == "worker":
            return b" ready." in log.read_bytes()[before:]
        beats = (self.data(machine) / "heartbeats").glob("watch*")
        return any(path.stat().st_mtime > began for path in beats if path.exists())

    async def stop(self, part: str, machine: int) -> None:
        if part == "web":  # a balancer takes it out, and lets requests end
            web = next(web for web in self.webs if web.port == self.ports[machine])
            self.webs.remove(web)
            async with asyncio.timeout(PATIENCE_S):
                while web.asked:
                    await asyncio.sleep(0.05)
        process, _ = self.running.pop((part, machine))
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, PATIENCE_S)

    @contextlib.contextmanager
    def web(self) -> Iterator[str]:
        """Yield the address of one of the web processes, and count the request that it gets."""
        web = random.choice(self.webs)
        web.asked += 1
        try:
            yield f"http://{HOST}:{web.port}"
        finally:
            web.asked -= 1

    async def replace(self, program: Program, machine: int) -> None:
        for part in self.parts(machine):
            await self.stop(part, machine)
            await asyncio.to_thread(self.start, program, part, machine)

    def end(self) -> None:
        for process, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# -- the parts ---------------------------------------------------------------------------------------------------------
def refusals(machines: Machines, program: Program) -> bool:
    """Start each command of a program that must refuse, and say what it said. Return whether each said one sentence."""
    good = True
    free = dict(zip(PORT_SETTINGS, map(str, free_ports(4)), strict=True))
    for part in ("up", *PARTS):
        status, said = machines.finished(program, "-W", "ignore", *COMMANDS[part], **free)
        fine = status == 1 and len(said.splitlines()) == 1 and "Traceback" not in said
        print(f"  {part}: {'' if fine else f'NOT ONE SENTENCE, status {status}: '}{said[-600:]}")
        good &= fine
    return good


def report_jobs(database: str, folder: Path) -> None:
    """Print what became of the jobs, which of them waited long, and the errors of the workers."""
    with psycopg.connect(database) as session:
        late = session.execute(
            "SELECT id, kind, attempt, created_at, queued_at, started_at, finished_at FROM dashboard_job "
            "WHERE started_at - created_at > interval '8 s' ORDER BY id"
        ).fetchall()
        rows = session.execute(
            "SELECT state, attempt, count(*) FROM dashboard_job GROUP BY state, attempt ORDER BY 1, 2"
        ).fetchall()
        waits = session.execute(
            "SELECT kind, max(started_at - created_at), max(finished_at - started_at) FROM dashboard_job "
            "WHERE finished_at > started_at GROUP BY kind"
        ).fetchall()
    print("jobs by state and attempt:", ", ".join(f"{state} {attempt}: {count}" for state, attempt, count in rows))
    for kind, waited, ran in waits:
        print(f"  {kind}: waited {waited.total_seconds():.1f} s at most, and ran {ran.total_seconds():.1f} s at most")
    for number, kind, attempt, *times in late:
        print(
            f"  job {number}, {kind}, attempt {attempt}: made, queued, begun, ended",
            *(f"{at:%H:%M:%S.%f}" for at in times),
        )
    for log in sorted(folder.glob("w[ao]*.log")):
        lines = [line for line in log.read_text(errors="replace").splitlines() if " ERROR " in line]
        for line, count in Counter(line.partition(" ERROR ")[2][:200] for line in lines).most_common(10):
            print(f"  {log.name}: {count} x {line}")


async def measure(older: Program, newer: Program, machines: Machines, traffic: Traffic, seconds: float) -> bool:
    """Go forth, back and forth again. Return whether nothing failed."""
    for machine in (0, 1):
        for part in machines.parts(machine):
            await asyncio.to_thread(machines.start, older, part, machine)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        await traffic.publish(client, "base")

    async def replace(program: Program, word: str) -> None:
        traffic.begin(f"one machine {word}")
        await machines.replace(program, 0)
        traffic.begin(f"both releases ({word})")
        await asyncio.sleep(seconds)
        traffic.begin(f"the other machine {word}")
        await machines.replace(program, 1)
        traffic.begin(f"after ({word})")
        await asyncio.sleep(seconds)

    good = True
    async with traffic.running(seconds):
        traffic.begin("migration")
        began = time.monotonic()
        status, said = await asyncio.to_thread(machines.finished, newer, "manage.py", "migrate", "-v0")
        assert status == 0, said
        print(f"migrated in {time.monotonic() - began:.1f} s", flush=True)
        traffic.begin("the older release on newer tables")
        await asyncio.sleep(seconds)
        await replace(newer, "forth")
        if older.expects_newer:
            await replace(older, "back")
            await replace(newer, "forth again")
        else:
            print("the older release does not read what newer ones demand; each of its commands says:")
            good &= await asyncio.to_thread(refusals, machines, older)
    return good and not traffic.failures


def contract(machines: Machines, older: Program, newer: Program, root: Path) -> bool:
    """Take away a column that the older release needs. Return whether it refuses then, and the newer one does not."""
    contracted = newer.with_migration(root, CONTRACTS.replace("{minimum}", newer.version), "0.3.0")
    status, said = machines.finished(contracted, "manage.py", "migrate", "-v0")
    assert status == 0, said
    print(f"after a migration of release 0.3.0 for programs from {newer.version} on, the older release says:")
    refused = refusals(machines, older)
    asks = "from dashboard.shared.release import check_release; print(check_release())"
    return machines.finished(newer, "manage.py", "shell", "--no-imports", "-c", asks) == (0, "0.3.0") and refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--older", default="main", help="a revision of git")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase in which nothing is replaced")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slipway-upgrade-")))
        older = of_revision(given.older, folder / "older")
        newer = of_working_tree(folder / "newer", "0.2.0" if older.version in ("", "0.1.0") else "")
        if not newer.migrations - older.migrations:
            newer = newer.with_migration(folder / "expanded", EXPANDS, newer.version)
        new = sorted(newer.migrations - older.migrations)
        print(f"older: {given.older} {older.version}; newer: {newer.version}, with {', '.join(new)}", flush=True)
        postgres = stack.enter_context(engines.postgres())
        redis = stack.enter_context(engines.redis())
        database = engines.new_database(postgres.port, "upgrade")
        ports = free_ports(5)
        password = secrets.token_hex(8)
        shared = older.takes("SLIPWAY_SHARED")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLIPWAY_", "PYTHONPATH"))},
            **{f"SLIPWAY_{key}_KEY": key.lower() * 8 for key in ("SECRET", "CONTROL", "INFER")},
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "DATABASE_URL": database,
            "REDIS_URL": f"redis://127.0.0.1:{redis.port}/0",
            "SLIPWAY_SHARED": str(folder / ("shared" if shared else "data")),
            "SLIPWAY_ADMIN_PASSWORD": password,
        }
        repository = folder / ("shared" if shared else "data") / "models"
        repository.mkdir(parents=True)
        if not shared:  # releases from before the variables of keys have them in files
            for key in ("secret", "control", "infer"):
                (folder / "data" / f"{key}_key").write_text(key * 8)
        machines = Machines(folder, shared, environment, ports)
        stack.callback(machines.end)
        for command in (("migrate", "-v0"), ("shell", "--no-imports", "-c", PREPARE.format(ports=ports[2:]))):
            status, said = machines.finished(older, "manage.py", *command)
            assert status == 0, said
        onnx_scale(folder / "source", "base")
        model = next((folder / "source").rglob("*.onnx")).read_bytes()
        server = ServerProcess(
            repository,
            *("--model-control-mode=explicit", f"--http-port={ports[2]}", f"--grpc-port={ports[3]}"),
            f"--metrics-port={ports[4]}",
            f"--http-restricted-api=model-repository,shared-memory,logging,trace:slipway-control-key={'control' * 8}",
            cwd=older.root,
            environment={"PYTHONPATH": str(older.root)},
            wait="live",
        )
        stack.enter_context(server)
        token, inference = said.splitlines()[-1], f"http://{HOST}:{ports[2]}"
        traffic = Traffic(machines.web, token, password, inference, model, "the older release")
        try:
            good = asyncio.run(measure(older, newer, machines, traffic, given.seconds))
        finally:
            traffic.report()
            report_jobs(database, folder)
        return 0 if contract(machines, older, newer, folder / "contracted") and good else 1


if __name__ == "__main__":
    sys.exit(main())
