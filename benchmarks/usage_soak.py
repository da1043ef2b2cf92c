"""Sends a million requests with tokens while processes are killed: each answered request must be counted once.

    python -m benchmarks.usage_soak --requests 1000000

A server with two frontend workers gets requests of four tokens, one of which has a quota. The server, its workers, and the
program that reads the usage log into the database are killed in turn, and started again. The exit status is 1 unless, for
every token: answered <= counted <= answered + unanswered when a connection ended; the log and the database agree; the rows are
as many as the counted requests have; and the token with a quota was answered exactly as often as its quota allows.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from repository.core.usage_log import COUNTERS, Counts, day_files, decode
from tests.support.frontend_workers import is_frontend_worker
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess, descendants

ROOT = Path(__file__).resolve().parents[1]
WINDOW = 24  # requests of a connection that are under way
ROWS = 2
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [ROWS, 1], "data": [0.5] * ROWS}]},
    separators=(",", ":"),
)
TOKENS = ("ada-1", "ada-2", "bob", "limited")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")


@dataclass
class Sent:
    """What a token's clients saw. unknown: requests whose connection ended before their answer."""

    answered: int = 0
    refused: int = 0
    other: int = 0
    unknown: int = 0


class Clients:
    """Connections that pipeline requests until enough are answered."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.sent = {token: Sent() for token in TOKENS}
        self.address = ("", 0)

    async def run(self, token: str) -> None:
        head = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        request = f"{head}Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
        while self.left > 0:
            writer: asyncio.StreamWriter | None = None
            try:
                reader, writer = await asyncio.open_connection(*self.address)
                await self._send(reader, writer, request, self.sent[token])
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
            finally:
                if writer is not None:
                    writer.close()

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, sent: Sent
    ) -> None:
        under_way = 0
        try:
            while self.left > 0:
                writer.write(request * WINDOW)
                under_way = WINDOW
                while under_way:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = _LENGTH.search(head)
                    await reader.readexactly(int(length.group(1)) if length else 0)
                    status = _STATUS.match(head)
                    under_way -= 1
                    self._count(sent, int(status.group(1)) if status else 0)
        finally:
            sent.unknown += under_way

    def _count(self, sent: Sent, status: int) -> None:
        if status == 200:
            sent.answered += 1
            self.left -= 1
        elif status == 429:
            sent.refused += 1
            self.left -= 1
        else:
            sent.other += 1


def write_auth(path: Path, quota: int) -> None:
    tokens = [
        {"name": token, "sha256": digest(token), "models": ["*"], "rights": ["infer"], "person": token.split("-")[0]}
        for token in TOKENS
    ]
    quotas = [{"of": "token", "name": digest("limited"), "requests_per_day": quota}]
    path.write_text(json.dumps({"tokens": tokens, "quotas": quotas}))


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class LogReader:
    """The program that reads the log into a database, as `watch` does."""

    def __init__(self, data: Path) -> None:
        own = {"SLIPWAY_DATA": str(data), "DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
        self._environment = {**os.environ, **own}
        self._process: subprocess.Popen[bytes] | None = None
        migrate = [sys.executable, "manage.py", "migrate", "-v", "0"]
        subprocess.run(migrate, cwd=ROOT, env=self._environment, check=True)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.usage_soak", "--read"], cwd=ROOT, env=self._environment
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def finish(self) -> None:
        self.kill()
        command = [sys.executable, "-m", "benchmarks.usage_soak", "--read-once"]
        subprocess.run(command, cwd=ROOT, env=self._environment, check=True)


def read_log(once: bool) -> None:
    """Read the log into the database, once or until killed."""
    import django

    django.setup()
    from dashboard.usage.log import UsageReader

    reader = UsageReader()
    while True:
        reader.read()
        if once:
            return
        time.sleep(0.2)


def in_log(folder: Path) -> dict[str, Counts]:
    """Return the totals of all days by the SHA-256 of the token."""
    totals: dict[str, Counts] = {}
    for path in day_files(folder):
        uses: dict[Any, Counts] = {}
        for record in decode(path.read_bytes()).records:
            uses |= record.uses
        for (token, _), counts in uses.items():
            before = totals.get(token, tuple([0] * len(COUNTERS)))
            totals[token] = tuple(a + b for a, b in zip(before, counts, strict=True))
    return totals


def in_database(path: Path) -> dict[str, Counts]:
    sums = ", ".join(f'sum("{name}")' for name in COUNTERS)
    with sqlite3.connect(path) as database:
        rows = database.execute(f"select token_hash, {sums} from dashboard_usageday group by token_hash").fetchall()
    return {row[0]: tuple(row[1:]) for row in rows}


@dataclass
class Outcome:
    """problems: what is wrong, in sentences; [] if everything is counted."""

    problems: list[str]
    sent: dict[str, Sent]
    counted: dict[str, Counts]
    kills: dict[str, int]
    seconds: float


async def soak(folder: Path, requests: int, kills: int, workers: int = 2, seconds: float = math.inf) -> Outcome:
    """Send the requests, and kill one process after the other, `kills` times at equal numbers of requests.

    seconds: send no further requests after this time."""
    onnx_identity(folder / "models", dims=[1], max_batch_size=64)
    quota = max(1, requests // 200)
    write_auth(folder / "auth.json", quota)
    data = folder / "data"
    log = data / "usage"
    reader = await asyncio.to_thread(LogReader, data)
    flags = (f"--auth-file={folder / 'auth.json'}", f"--usage-log={log}", f"--frontend-workers={workers}")
    clients, done = Clients(requests), dict.fromkeys(("worker", "reader", "server"), 0)
    began = time.monotonic()
    reader.start()
    server = await asyncio.to_thread(ServerProcess(folder / "models", *flags).start)
    tasks: list[asyncio.Task[None]] = []
    try:
        clients.address = _address(server)
        tasks = [asyncio.create_task(clients.run(token)) for token in TOKENS for _ in range(2)]
        for number, what in zip(range(1, kills + 1), itertools.cycle(done), strict=False):
            while clients.left > requests - requests * number // (kills + 1):
                await asyncio.sleep(0.01)
                if time.monotonic() - began > seconds:
                    clients.left = 0
            if clients.left <= 0:
                break
            done[what] += 1
            if what == "reader":
                reader.kill()
                reader.start()
            elif what == "worker":
                os.kill(min(pid for pid in descendants(server.pid) if is_frontend_worker(pid)), signal.SIGKILL)
            else:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.close)
                server = await asyncio.to_thread(ServerProcess(folder / "models", *flags).start)
                clients.address = _address(server)
        while clients.left > 0 and time.monotonic() - began < seconds:
            await asyncio.sleep(0.01)
        clients.left = 0
        await asyncio.gather(*tasks)
        await asyncio.to_thread(server.terminate)
        took = time.monotonic() - began
        await asyncio.to_thread(reader.finish)
    finally:
        for task in tasks:
            task.cancel()
        reader.kill()
        await asyncio.to_thread(server.close)
    counted = in_log(log)
    problems = _problems(clients.sent, counted, in_database(data / "db.sqlite3"), quota, done["server"])
    return Outcome(problems, clients.sent, counted, done, took)


def _address(server: ServerProcess) -> tuple[str, int]:
    host, _, port = server.http.rpartition(":")
    return host, int(port)


def _problems(
    sent: dict[str, Sent], counted: dict[str, Counts], stored: dict[str, Counts], quota: int, server_kills: int
) -> list[str]:
    found = []
    for token, seen in sent.items():
        counts = dict(zip(COUNTERS, counted.get(digest(token), (0,) * len(COUNTERS)), strict=True))
        if counted.get(digest(token)) != stored.get(digest(token)):
            found.append(f"{token}: the log and the database differ")
        if not seen.answered <= counts["requests"] <= seen.answered + seen.unknown:
            found.append(f"{token}: {seen.answered} answered, {seen.unknown} unknown, {counts['requests']} counted")
        if not seen.refused <= counts["refused"] <= seen.refused + seen.unknown:
            found.append(f"{token}: {seen.refused} refused, {counts['refused']} counted as refused")
        # A kill may fall between the increments of one request.
        if abs(counts["rows"] - ROWS * counts["requests"]) > ROWS * server_kills:
            found.append(f"{token}: {counts['rows']} rows of {counts['requests']} requests")
    limited = dict(zip(COUNTERS, counted.get(digest("limited"), (0,) * len(COUNTERS)), strict=True))
    if limited["requests"] + limited["failed"] != quota:
        found.append(f"the quota is {quota}, but {limited['requests']} requests were answered")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=math.inf, help="send no further requests after this time")
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read-once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read or given.read_once:
        read_log(given.read_once)
        return 0
    with tempfile.TemporaryDirectory(prefix="slipway-usage-") as folder:
        outcome = uvloop.run(soak(Path(folder), given.requests, given.kills, seconds=given.seconds))
    for token, seen in outcome.sent.items():
        counts = dict(zip(COUNTERS, outcome.counted[digest(token)], strict=True))
        print(f"{token}: {seen}; counted {counts}")
    print(f"kills {outcome.kills}; {outcome.seconds:.0f} s")
    print("\n".join(outcome.problems) or "every answered request is counted once")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
