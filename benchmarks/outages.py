"""Counts what fails while each part of an installation on several machines is killed, stopped and cut off in turn.

    python -m benchmarks.outages --only redis,worker

Three servers, two web processes, two workers and two watchers run by `manage.py up --only`, each with a data folder of its own,
on real PostgreSQL behind PgBouncer, Redis, an S3 interface (moto) and HAProxy with the files of deploy/. People read pages,
programs read over REST and describe a model, jobs publish models that are then asked and deleted, clients infer over HTTP and
gRPC. A rollout gives half of the requests of one model to its candidate all the time. No client tries again.

A part is killed with SIGKILL (`up` starts it again; the engines are started after some seconds), stopped with SIGSTOP, or cut
off: the cables between it and all others let nothing through, as a lost network does. moto keeps the objects in memory, so
`killed` is for it that its cables refuse connections. For each fault the benchmark waits until a page and REST name the part,
and afterwards until both say that all is well. At last the candidate of another rollout fails while the database is stopped:
each server must take it out by itself. In the end each job must have ended once. The exit status is 1 if a part was not named,
or another one was; if it was not whole again in time; if an inference request failed though no server was hurt; if the
candidate got another share; or if a job has not ended once.
"""

import argparse
import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import httpx
import numpy as np
import psycopg
from onnx import helper
from tritonclient.grpc import service_pb2 as pb

from benchmarks.rolling_upgrade import balancing
from benchmarks.traffic import INPUT, Ask, Failed, Traffic
from tests.support import engines
from tests.support.model_factory import onnx_bytes, onnx_scale
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.ports import HOST, free_port, free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S
from tests.support.up_process import Up

CONFIGURATION = ROOT / "deploy" / "haproxy-dashboard.cfg"
MACHINES = ("web", "web", "worker", "worker", "watch", "watch", "server", "server", "server")
PARTS = ("postgres", "pgbouncer", "redis", "s3", "web", "worker", "watch", "server")
LAST = ("rollout", "fails while the database is stopped")
FAULTS = ("killed", "stopped", "cut off")
WORDS = {"web": ("daphne",), "worker": ("celery",), "watch": ("manage.py", "watch"), "server": ("serving",)}
# What pages say of a part that is out.
SAID = {
    **dict.fromkeys(("postgres", "pgbouncer"), "database"),
    "redis": "job queue has not answered",
    "s3": "bucket of the repository has not answered",
    **{
        part: f"{title} {{pid}} on"
        for part, title in (("web", "dashboard"), ("worker", "worker"), ("watch", "watcher"))
    },
    "server": "Down",
}
SHARE, DEVIATIONS = 0.5, 5.0  # of the candidate; the share that was counted may differ by so many standard deviations
ENOUGH = 30  # answers of the old version in turn, after which a server has taken the candidate out
CALL = "/inference.GRPCInferenceService/ModelInfer"
OUT_S = 22.0  # a part is out so long, unless its `up` starts it again
WHOLE_S = 90.0
MISSED_S = 5.0  # in this time somebody notices that a killed process does not answer
CLIENT_S = 30.0  # a client waits so long for an answer
# An installation without the examples, which nobody asks, and a token of its administrator.
PREPARE = """
from pathlib import Path
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import token_create
call_command("migrate", verbosity=0)
for one in Path(settings.EXAMPLES_DIR).iterdir():
    audit_record(actor=SYSTEM, action="model.delete", summary="No example", model_name=one.name)
administrator_ensure()
user = get_user_model().objects.get()
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read", "write", "upload_code", "admin"])[1])
"""


# -- the machines ------------------------------------------------------------------------------------------------------
class Cable:
    """Passes TCP connections on to a port. cut: nothing passes until it is mended, then all of it; refuse: connections end."""

    def __init__(self, target: int) -> None:
        self.port, self._target = free_port(), target
        self._whole = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def mend(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._pass, HOST, self.port, limit=1 << 20)
        self._whole.set()

    def cut(self) -> None:
        self._whole.clear()

    async def refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in self._open:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target, limit=1 << 20)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        with contextlib.suppress(asyncio.CancelledError):  # the benchmark ends
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        self._open -= {writer, far_writer}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                await self._whole.wait()
                writer.write(piece)
                await writer.drain()
        await self._whole.wait()
        writer.close()


class Machine:
    """One `up` with one part. to: its cables to the engines; ports: those at which others reach it, by cable."""

    def __init__(self, folder: Path, part: str, to: dict[str, Cable], environment: dict[str, str]) -> None:
        self.part, self.ports = part, free_ports(4)
        own = {
            "DATABASE_URL": f"postgres://slipway@{HOST}:{to['pgbouncer'].port}/outages",
            "REDIS_URL": f"redis://{HOST}:{to['redis'].port}/0",
            "SLIPWAY_REPOSITORY": f"s3://{HOST}:{to['s3'].port}/{BUCKET}/outages",
        }
        self.up = Up(folder, self.ports, **environment, **own)
        self.reached = [Cable(port) for port in self.ports]
        self.cables = [*to.values(), *self.reached]

    @property
    def pid(self) -> int:
        """The process of the part; 0 while it does not run."""
        return next(iter(self.up.running(*WORDS[self.part])), 0)


class Installation:
    """Everything that runs. faults: how each part is hurt, and how it is mended."""

    def __init__(self, folder: Path, password: str, running: contextlib.AsyncExitStack) -> None:
        self.folder, self._running = folder, running
        self.engines: dict[str, engines.Engine] = {
            "postgres": running.enter_context(engines.postgres("max_connections=100")),
            "redis": running.enter_context(engines.redis()),
        }
        self.store = running.enter_context(ObjectStore())
        self.database = engines.new_database(self.engines["postgres"].port, "outages")
        self.behind = Cable(self.engines["postgres"].port)
        self.engines["pgbouncer"] = running.enter_context(engines.pgbouncer(self.behind.port, sessions=40))
        targets = {name: self.engines[name].port for name in ("pgbouncer", "redis")} | {"s3": self.store.port}
        environment = {
            **{f"SLIPWAY_{key}_KEY": key.lower() * 8 for key in ("SECRET", "CONTROL", "INFER")},
            **{f"AWS_{key}": "any" for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")},
            "AWS_DEFAULT_REGION": "us-east-1",
            "SERVING_COMPILED": "no",
            "SLIPWAY_SHARED": str(folder / "shared"),
            "SLIPWAY_ADMIN_PASSWORD": password,
            "SLIPWAY_DATABASE_SESSIONS": "8",
        }
        self.machines = [
            Machine(
                folder / f"{part}{number}", part, {name: Cable(port) for name, port in targets.items()}, environment
            )
            for number, part in enumerate(MACHINES)
        ]
        self.web, self.http, self.grpc = free_ports(3)
        self.token = ""
        self.hurt_at: list[float] = []  # Unix times

    def of(self, part: str) -> list[Machine]:
        return [machine for machine in self.machines if machine.part == part]

    async def start(self) -> None:
        (self.folder / "shared").mkdir(parents=True)
        for cable in (self.behind, *(cable for machine in self.machines for cable in machine.cables)):
            await cable.mend()
        self.token = await asyncio.to_thread(self._prepare)
        await asyncio.gather(*map(self._start, self.machines))
        self._running.callback(self.stop)
        for machine in self.of("server"):
            _, http, grpc, metrics = (cable.port for cable in machine.reached)
            self.query(
                "UPDATE dashboard_server SET http_url = %s, grpc_url = %s, metrics_url = %s WHERE http_url = %s RETURNING id",
                *(f"http://{HOST}:{http}", f"{HOST}:{grpc}", f"http://{HOST}:{metrics}", machine.up.http_url),
            )
        ports = [(machine.reached[1].port, machine.reached[2].port) for machine in self.of("server")]
        self._running.enter_context(engines.haproxy(balancing(self.http, self.grpc, ports), self.http))
        text = CONFIGURATION.read_text().replace("*:80", f"{HOST}:{self.web}")
        for number, machine in enumerate(self.of("web"), 1):
            text = text.replace(f"10.0.0.{number}:9000", f"{HOST}:{machine.reached[0].port}")
        self._running.enter_context(engines.haproxy(text, self.web))

    def stop(self) -> None:
        """Tell all machines to stop, so that they do so at once."""
        for machine in self.machines:
            if machine.up.process is not None:
                machine.up.process.terminate()

    async def _start(self, machine: Machine) -> None:
        self._running.push_async_callback(asyncio.to_thread, machine.up.close)  # the cables go on meanwhile
        began = time.monotonic()
        await asyncio.to_thread(machine.up.start, "--only", machine.part)
        print(f"  {machine.part} started in {time.monotonic() - began:.0f} s", flush=True)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as session:
            return session.execute(sql.encode(), values).fetchall()

    def _prepare(self) -> str:
        command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", PREPARE]
        how = {"cwd": ROOT, "env": self.machines[0].up.environment, "timeout": START_TIMEOUT_S}
        return subprocess.run(command, check=True, capture_output=True, text=True, **how).stdout.split()[-1]

    def victim(self, part: str) -> Machine:
        """Return the machine of a part that is hurt: the watcher that leads, a worker that runs a job, else the first."""
        asks = {
            "watch": "SELECT substring(holder from 'process (\\d+)') FROM dashboard_watchlease",
            "worker": "SELECT split_part(worker, ' ', 2) FROM dashboard_job WHERE state = 'running'",
        }
        over = time.monotonic() + CLIENT_S
        while part in asks and time.monotonic() < over:
            busy = {pid for (pid,) in self.query(asks[part])}
            for machine in self.of(part):
                if str(machine.pid) in busy:
                    return machine
            time.sleep(0.05)
        return self.of(part)[0]

    @contextlib.asynccontextmanager
    async def hurt(self, part: str, fault: str) -> AsyncIterator[int]:
        """Hurt a part while the block runs. Yield its process, 0 for an engine."""
        machine = await asyncio.to_thread(self.victim, part) if part in WORDS else None
        pid = machine.pid if machine else 0
        self.hurt_at.append(time.time())
        engine = self.store if part == "s3" else self.engines.get(part)
        cables = []
        if fault == "cut off" or (part, fault) == ("s3", "killed"):
            beside = [one for each in self.machines for name, one in self.cables_of(each) if name == part]
            cables = machine.cables if machine else [self.behind] if part == "postgres" else beside
            for cable in cables:
                await cable.refuse() if fault == "killed" else cable.cut()
        elif machine is not None:
            os.kill(pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        elif fault == "stopped":
            engine.signal(signal.SIGSTOP)
        else:
            engine.kill()
        try:
            yield pid
        finally:
            for cable in cables:
                await cable.mend()
            if fault == "stopped":
                os.kill(pid, signal.SIGCONT) if pid else engine.signal(signal.SIGCONT)
            elif fault == "killed" and not cables and engine is not None:
                await asyncio.to_thread(engine.start)

    def cables_of(self, machine: Machine) -> Iterator[tuple[str, Cable]]:
        yield from zip(("pgbouncer", "redis", "s3"), machine.cables, strict=False)


# -- the traffic and what pages say ------------------------------------------------------------------------------------
class Users(Traffic):
    """People and programs, and one who looks whether pages tell the truth."""

    PAUSE_S = 0.5
    PAUSES: ClassVar = {"inference": 0.1, "canary": 0.1, "gRPC": 0.1}

    def __init__(self, installation: Installation, token: str, password: str, model: bytes) -> None:
        address = f"http://{HOST}:{installation.web}"
        super().__init__(
            *(lambda: contextlib.nullcontext(address), token, password, f"http://{HOST}:{installation.http}", model),
            phase="before",
        )
        self._installation = installation
        self._channel: grpc.aio.Channel | None = None
        self.versions: dict[str, Counter[int]] = {}  # which versions of `canary` answered, by phase

    def kinds(self) -> list[tuple[str, Ask]]:
        return [
            *(("pages", self._visit), ("REST", self._list), ("edits", self._edit), ("publishing", self._publish)),
            *(("inference", self._infer), ("canary", self._ask_canary), ("gRPC", self._call_canary)),
        ]

    async def _ask_canary(self, client: httpx.AsyncClient) -> None:
        version = await self.infer(client, self._inference, "canary")
        self.versions.setdefault(self.phase, Counter())[version] += 1

    async def _call_canary(self, _: httpx.AsyncClient) -> None:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(
                f"{HOST}:{self._installation.grpc}", options=(("grpc.enable_retries", 0),)
            )
        asked = pb.ModelInferRequest(model_name="canary")
        tensor = asked.inputs.add(name=INPUT["name"], datatype=INPUT["datatype"], shape=INPUT["shape"])
        tensor.contents.fp32_contents.extend(INPUT["data"])
        call = self._channel.unary_unary(CALL, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)
        answer = await call(asked, timeout=PATIENCE_S)
        version = self.checked(
            int(answer.model_version), np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
        )
        self.versions.setdefault(self.phase, Counter())[version] += 1

    async def begin_rollout(self, client: httpx.AsyncClient, name: str, candidate: bytes) -> None:
        """Publish a model and a candidate, which gets half of the requests until somebody or a guardrail ends it."""
        await self.publish(client, name)
        await self.publish(client, name, further=candidate)
        steps, guardrails = [{"weight": 100 * SHARE, "bake_s": 7776000.0}], [{"metric": "errors", "margin": 0.01}]
        plan = {"steps": steps, "promote": "hand", "guardrails": guardrails, "min_samples": ENOUGH}
        address = f"/api/v1/models/{name}/rollouts"

        async def begun() -> str:  # 503 while the bucket is late
            await self._ask(client, "POST", address, 201, json={"candidate": 2, "plan": plan}, headers=self._bearer)
            return ""

        _, wrong = await moment(begun, PATIENCE_S)
        assert not wrong, wrong

    async def rollout(self, client: httpx.AsyncClient, name: str) -> dict[str, Any]:
        found = (await self._look(client, f"/api/v1/models/{name}/rollouts")).json()["results"][0]
        return dict((await self._look(client, f"/api/v1/models/{name}/rollouts/{found['name']}")).json())

    def shares(self) -> bool:
        """Print the share of the candidate in each phase. Return whether all are as asked."""
        good = True
        for phase, versions in self.versions.items():
            total = versions.total()
            off = abs(versions[2] - total * SHARE) / (total * SHARE * (1 - SHARE)) ** 0.5
            if off > DEVIATIONS:
                print(f"{phase}: the candidate got {versions[2]} of {total:,} requests")
                good = False
        every = sum(self.versions.values(), Counter())
        print(f"the candidate got {every[2] / max(1, every.total()):.2%} of {every.total():,} requests", flush=True)
        return good

    def failed_for_nothing(self) -> int:
        """Return how many inference requests failed while no server was hurt."""
        kinds = ("inference", "canary", "gRPC")
        return sum(
            n for (phase, kind, _), n in self.failures.items() if kind in kinds and not phase.startswith("server")
        )

    async def accused(self, client: httpx.AsyncClient) -> str:
        """Return which processes are said to be silent though only an engine is out."""
        answer = await self._look(client, "/api/v1/processes")
        silent = [one["name"] for one in answer.json()["results"] if one["silent"]]
        return f"named too: {', '.join(silent)}" if silent else ""

    async def _edit(self, client: httpx.AsyncClient) -> None:
        said = {"description": secrets.token_hex(4)}
        await self._ask(client, "PATCH", "/api/v1/models/base", json=said, headers=self._bearer)

    async def told(self, client: httpx.AsyncClient, part: str, pid: int) -> str:
        """Return "" if both REST and a page name the part that is out, else what is missing."""
        if part in ("postgres", "pgbouncer"):
            answers = [await self._look(client, path) for path in ("/api/v1/models", "/servers/")]
            bad = [one for one in answers if one.status_code != 503 or "database" not in one.text]
            return f"{bad[0].status_code} {bad[0].text[:80]}" if bad else ""
        page = re.sub(r"\s+", " ", (await self._look(client, "/servers/")).text)
        if SAID[part].format(pid=pid) not in page:
            return "the page does not name it"
        if part == "server":
            servers = (await self._look(client, "/api/v1/servers")).json()["results"]
            return "" if any(one["state"]["state"] == "down" for one in servers) else "REST does not say it is down"
        if pid:
            rows = (await self._look(client, "/api/v1/processes")).json()["results"]
            return "" if any(one["pid"] == pid and one["silent"] for one in rows) else "REST does not say it is silent"
        return ""

    async def wrong(self, client: httpx.AsyncClient, dead: int = 0) -> str:
        """Return "" if everything answers and pages say so, else the first thing that is not well. dead: a killed process."""
        return await self.out(client, dead) or await self._unserved(client)

    async def out(self, client: httpx.AsyncClient, dead: int = 0) -> str:
        """Return "" if all processes answer, else the first thing that is not well."""
        answer = await self._look(client, "/api/v1/processes")
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text[:80]}"
        rows = answer.json()["results"]
        if dead in [one["pid"] for one in rows]:
            return f"process {dead} was killed and is listed"
        found = Counter(one["name"] for one in rows if not one["silent"])
        expected = Counter(part for part in MACHINES if part != "server") + Counter(up=len(MACHINES))
        if found != expected or sum(found.values()) != len(rows):
            return f"processes: {dict(found)} answer, {len(rows)} known"
        if sum(bool(one["leads"]) for one in rows) != 1:
            return "no watcher leads"
        servers = (await self._look(client, "/api/v1/servers")).json()["results"]
        if [one["state"]["state"] for one in servers] != ["ready"] * 3:
            return f"servers: {[one['state']['state'] for one in servers]}"
        if dead in [one["state"]["pid"] for one in servers]:
            return f"server {dead} was killed and is listed"
        return ""

    async def _unserved(self, client: httpx.AsyncClient) -> str:
        state = (await self._look(client, "/api/v1/models/base")).json()["state"]
        page = (await self._look(client, "/servers/")).text
        if "not answer" in page:
            return f"the page says: {page[max(0, page.index('not answer') - 60) :][:100]}"
        if state != "ready":
            return f"base is {state}"
        rollout = await self.rollout(client, "canary")
        moves = rollout["rollout"]["state"] == "running" and rollout["in_force"] == 100 * SHARE
        return "" if moves else f"the rollout of canary is {rollout['rollout']['state']}: {rollout['in_force']}"

    async def _look(self, client: httpx.AsyncClient, path: str) -> httpx.Response:
        address = f"http://{HOST}:{self._installation.web}{path}"
        return await client.get(address, headers=self._bearer if "/api/" in path else {})

    async def serves(self, client: httpx.AsyncClient) -> bool:
        return (await self._look(client, "/api/v1/models/base")).status_code == 200

    async def sign_in(self, client: httpx.AsyncClient) -> None:
        await self._visit(client)


async def moment(check: Callable[[], Any], patience_s: float) -> tuple[float, str]:
    """Wait until a check returns "". Return the seconds it took, or -1 and what it returned last."""
    began, said, last = time.monotonic(), "nothing", ""
    while time.monotonic() - began < patience_s:
        try:
            said = await check()
        except (Failed, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
        if not said:
            return time.monotonic() - began, ""
        if said != last:
            print(f"  {time.monotonic() - began:.1f} s: {said}", flush=True)
        last = said
        await asyncio.sleep(0.5)
    return -1.0, said


async def outage(installation: Installation, users: Users, client: httpx.AsyncClient, part: str, fault: str) -> bool:
    """Hurt a part, mend it, and print a row. Return whether it was named and whole again in time."""
    users.begin(f"{part}, {fault}")
    began = time.monotonic()
    own = fault == "killed" and part in WORDS  # its `up` starts it again, often before anyone is told
    out_s = 0.0 if own else OUT_S
    async with installation.hurt(part, fault) as pid:
        told_s, unsaid = (0.0, "") if own else await moment(lambda: users.told(client, part, pid), out_s)
        if not own:
            await asyncio.sleep(max(0.0, began + out_s - time.monotonic()))
        if part in ("redis", "s3"):
            unsaid = unsaid or await users.accused(client)
    users.begin(f"{part}, {fault}: afterwards")
    if own:  # until it is missed, all looks well
        await asyncio.sleep(MISSED_S)
    whole_s, wrong = await moment(lambda: users.wrong(client, pid * own), WHOLE_S)
    whole_s += MISSED_S * own
    print(f"| {part} | {fault} | {'-' if own else f'{told_s:.1f}'} | {whole_s:.1f} | {unsaid} | {wrong} |", flush=True)
    return not unsaid and not wrong


async def breach(installation: Installation, users: Users, client: httpx.AsyncClient) -> bool:
    """Let the candidate of `faulty` fail while the database is stopped. Return whether each server takes it out by itself, and
    the dashboard says so when the database is back."""
    users.begin(", ".join(LAST))
    began, failed = time.monotonic(), 0
    async with installation.hurt("postgres", "stopped"):
        for machine in installation.of("server"):
            in_turn = 0
            while in_turn < ENOUGH and time.monotonic() < began + WHOLE_S:
                try:
                    in_turn = in_turn + 1 if await users.infer(client, machine.up.http_url, "faulty") == 1 else 0
                except Failed:
                    failed, in_turn = failed + 1, 0
                await asyncio.sleep(0.02)
            print(
                f"  {time.monotonic() - began:.1f} s: a server took the candidate out: {in_turn >= ENOUGH}", flush=True
            )
            if in_turn < ENOUGH:
                return False
    print(f"  {failed} requests of the candidate failed before", flush=True)

    async def rolled_back() -> str:
        rollout = (await users.rollout(client, "faulty"))["rollout"]
        return "" if rollout["state"] == "rolled_back" else f"the rollout of faulty is {rollout['state']}"

    said_s, unsaid = await moment(rolled_back, WHOLE_S)
    whole_s, wrong = await moment(lambda: users.wrong(client), WHOLE_S)
    print(f"| {LAST[0]} | {LAST[1]} | {said_s:.1f} | {whole_s:.1f} | {unsaid} | {wrong} |", flush=True)
    return not unsaid and not wrong


# -- the measurement ---------------------------------------------------------------------------------------------------
UNENDED = "SELECT id, kind, state, attempt, step FROM dashboard_job WHERE state IN ('queued', 'running')"
JOBS = "SELECT kind, state, attempt, left(error, 100), count(*) FROM dashboard_job GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3"
SLOWEST = (
    "SELECT kind, max(started_at - created_at), max(finished_at - started_at) "
    "FROM dashboard_job WHERE finished_at > started_at GROUP BY 1"
)
AGAIN = "SELECT kind, attempt, extract(epoch FROM started_at)::float8 FROM dashboard_job WHERE attempt > 0 ORDER BY id"
TWICE = (
    "SELECT model_name, action, count(*) FROM dashboard_auditentry "
    "WHERE action IN ('version.publish', 'model.delete') AND model_name LIKE 'm%%' GROUP BY 1, 2 HAVING count(*) > 1"
)
STUCK = (
    "SELECT state, count(*) FROM dashboard_upload "
    "WHERE state IN ('received', 'inspecting', 'converting', 'publishing') GROUP BY 1"
)


async def ended_once(installation: Installation) -> bool:
    """Wait until all jobs have ended, and print them. Return whether each ended, and none did its work twice."""

    async def unended() -> str:
        found = await asyncio.to_thread(installation.query, UNENDED)
        return "; ".join(map(str, found))

    _, left = await moment(unended, 2 * WHOLE_S)
    twice, stuck = installation.query(TWICE), installation.query(STUCK)
    for row in (*installation.query(JOBS), *installation.query(SLOWEST)):
        print("  ", *row)
    for kind, attempt, began in installation.query(AGAIN):
        hurt_at = max((at for at in installation.hurt_at if at < began), default=began)
        print(f"   {kind} began again, attempt {attempt}, {began - hurt_at:.1f} s after a part was hurt")
    print(
        f"not ended: {left or 'none'}; done twice: {twice or 'none'}; uploads that stick: {stuck or 'none'}", flush=True
    )
    return not left and not twice and not stuck


async def begin(users: Users, client: httpx.AsyncClient, candidates: dict[str, bytes]) -> None:
    """Publish the models, begin the rollouts, sign in, and wait until everything is well. candidates: by model."""
    _, wrong = await moment(lambda: users.out(client), START_TIMEOUT_S)
    assert not wrong, wrong
    await users.publish(client, "base")
    for name, content in candidates.items():
        await users.begin_rollout(client, name, content)
    await users.sign_in(client)
    _, wrong = await moment(lambda: users.wrong(client), START_TIMEOUT_S)
    assert not wrong, wrong


def candidates(folder: Path) -> dict[str, bytes]:
    """Return the second version of `canary`, which triples, and of `faulty`, which fails for every input but 0."""
    onnx_scale(folder, "triples", 3.0)
    fails = onnx_bytes(
        [
            helper.make_node("Cast", ["INPUT0"], ["place"], to=helper.TensorProto.INT64),
            helper.make_node("Gather", ["values", "place"], ["OUTPUT0"]),
        ],
        [("INPUT0", "FP32", ["batch", 1])],
        [("OUTPUT0", "FP32", ["batch", 1])],
        {"values": np.zeros(1, np.float32)},
    )
    return {"canary": next((folder / "triples").rglob("*.onnx")).read_bytes(), "faulty": fails}


async def measure(chosen: list[tuple[str, str]], seconds: float, keep: Path | None) -> bool:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with contextlib.AsyncExitStack() as running:
        folder = keep or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="slipway-outages-")))
        password = secrets.token_hex(8)
        installation = Installation(folder, password, running)
        await installation.start()
        onnx_scale(folder / "source", "base")
        model = next((folder / "source").rglob("*.onnx")).read_bytes()
        users = Users(installation, installation.token, password, model)
        client = await running.enter_async_context(
            httpx.AsyncClient(trust_env=False, timeout=CLIENT_S, follow_redirects=True)
        )
        await begin(users, client, candidates(folder / "source"))
        good = True
        print("| part | fault | told after s | whole after s | not told | not whole |", flush=True)
        try:
            async with users.running(seconds):
                for part, fault in chosen:
                    hurt = (installation, users, client)
                    good &= await (breach(*hurt) if (part, fault) == LAST else outage(*hurt, part, fault))
                    users.begin("between")
                    await asyncio.sleep(seconds / 4)
            good &= await ended_once(installation)
        finally:
            users.report()
        good &= users.shares()
        print(f"inference requests that failed though no server was hurt: {users.failed_for_nothing()}", flush=True)
        return good and not users.failed_for_nothing()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="such as redis,worker:killed; by default all")
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic before the first fault")
    parser.add_argument("--keep", type=Path, help="an empty folder for all files, which stay")
    given = parser.parse_args()
    asked = [tuple(one.split(":")) for one in given.only.split(",") if one]
    every = [*((part, fault) for fault in FAULTS for part in PARTS), LAST]
    chosen = [one for wanted in asked for one in every if wanted in (one, one[:1])] or every
    return 0 if asyncio.run(measure(chosen, given.seconds, given.keep)) else 1


if __name__ == "__main__":
    sys.exit(main())
