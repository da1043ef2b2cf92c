"""Stand-ins for inference servers in one process: the routes, control API and live feed that `watch` uses, without any model.

    python -m benchmarks.fleet.stand_in REPOSITORY --key KEY --ports 20001 20002 ... --busy 3

Each port is one server. It reads the managed repository as a real one does, and a load takes LOAD_S. `--busy` models get
REQUESTS requests a second, counted as a real server counts them. A line on the standard input makes servers misbehave:
"hang 20001 ...", "refuse 20001 ...", "flap 20001 ..." (gone and back every FLAP_S), "well 20001 ...". GET /stand-in/loads tells
when each server had which release. tests/benchmarks/test_fleet.py compares its answers with those of a real server.
"""

import argparse
import asyncio
import functools
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from repository.config.document import Document, stamp_of
from repository.core.histogram import BOUNDS_US
from repository.core.server_version import VERSION

HOST = "127.0.0.1"
LOAD_S = 0.15
FLAP_S = 3.0
REQUESTS = 40
SPAN_S = 10  # a span of slow requests
_STARTED = time.time()
_EXTENSIONS = (
    "classification", "sequence", "sequence(string_id)", "model_repository", "model_repository(unload_dependents)",
    "schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data",
    "parameters", "statistics", "logging", "trace", "generate",
)  # fmt: skip
_STEPS = [
    {"step": "check", "ms": 40.0},
    {"step": "memory", "ms": 0.9},
    {"step": "load", "ms": 1000 * LOAD_S - 42},
    {"step": "warm", "ms": 0.2},
    {"step": "switch", "ms": 0.2},
    {"step": "drain", "ms": 0.0, "under_way": 0},
]
_OUTPUTS = [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]
# Where the latencies of a small model lie: bucket -> share of the requests.
_SPREAD = {"69": 0.08, "70": 0.56, "71": 0.2, "74": 0.05, "75": 0.05, "76": 0.03, "81": 0.01, "97": 0.01, "121": 0.01}

Answer = tuple[int, Any]


@functools.lru_cache(maxsize=4096)
def _read(text: str, there: tuple[int, ...]) -> tuple[int | None, list[int]]:
    return stamp_of(text), Document.read(text).versions(there)


class Repository:
    """The models on disk, which are read again at most once a second, for all servers together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._until = 0.0

    def names(self) -> list[str]:
        if time.monotonic() > self._until:
            self._names = sorted(path.name for path in self._folder.iterdir() if path.is_dir())
            self._until = time.monotonic() + 1.0
        return self._names

    def model(self, name: str) -> tuple[int | None, list[int]] | None:
        """Return the release and the versions of a model as they are on disk now, None without a folder."""
        folder = self._folder / name
        if not folder.is_dir():
            return None
        config = folder / "config.pbtxt"
        there = tuple(sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()))
        return _read(config.read_text() if config.exists() else "", there)


class Counters:
    """The work of a busy model, which is the same on every server; each row is rendered once a second."""

    @staticmethod
    def row(name: str, version: int, release: int | None, asked: int) -> dict[str, Any]:
        def spent(each_us: int) -> dict[str, int]:
            return {"count": asked, "ns": asked * each_us * 1000}

        def latency(each_us: int, total: int = asked) -> dict[str, Any]:
            counts = {bucket: int(share * total) for bucket, share in _SPREAD.items() if int(share * total)}
            return {"total": total, "sum_ns": total * each_us * 1000, "counts": counts}

        nothing = {"count": 0, "ns": 0}
        half = asked // 2
        instance = {
            "success": half, "fail": 0, "inference_count": half, "execution_count": half, "compute_ns": half * 110_000,
            "request_latency": latency(200, half),
        }  # fmt: skip
        return {
            "name": name, "version": str(version), "namespace": "", "state": "READY", "condition": "", "failed": False,
            **({} if release is None else {"release": release}),
            "pending": 0, "in_flight": 0, "memory": {"host_bytes": 113, "gpu_bytes": {}, "basis": "files"},
            "success": spent(200), "fail": nothing, "cancel": nothing, "mirrored": 0, "queue": spent(50),
            "compute_input": spent(9), "compute_infer": spent(100), "compute_output": spent(5),
            "inference_count": asked, "execution_count": asked, "failures": {}, "cache_hits": 0, "cache_misses": 0,
            "batches": {"1": asked} if asked else {}, "batch_times": {"1": asked * 114_000} if asked else {},
            "request_latency": latency(200), "queue_latency": latency(50), "compute_latency": latency(114),
            "arrival_gaps": latency(25_000), "instances": {f"{name}_0": instance, f"{name}_1": instance},
        }  # fmt: skip


class StandIn:
    """One server. mode: "well", "hang", "refuse" or "flap"."""

    def __init__(self, port: int, repository: Repository, key: str, busy: int, loaded: bool = False) -> None:
        self.port, self.mode = port, "well"
        self.loads: list[tuple[str, int | None, float]] = []
        self.open: set[Connection] = set()
        self._repository, self._key, self._busy = repository, key, busy
        names = repository.names() if loaded else ()
        self._serving = {name: found for name in names if (found := repository.model(name)) is not None}
        self._unloaded: dict[str, list[int]] = {}
        self._began: dict[str, float] = {}
        self._fence = 0
        self._listener: asyncio.Server | None = None
        self._born()

    def _born(self) -> None:
        self.instance, self._noted_instance = str(uuid.uuid4()), uuid.uuid4().hex
        self._started = time.time()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: Connection(self), HOST, self.port, backlog=200)

    async def vanish(self) -> None:
        """Refuse connections, as a process that has ended."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.open):
            connection.transport.abort()
        self._serving, self._unloaded = {}, {}

    async def behave(self, mode: str) -> None:
        self.mode = mode
        if mode in ("refuse", "flap"):
            await self.vanish()
        elif self._listener is None:
            self._born()
            await self.listen()

    # -- answers ---------------------------------------------------------------------------------------------------
    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        bare = path.partition("?")[0]
        if path == "/stand-in/loads":
            return 200, self.loads
        if (method, bare) == ("GET", "/v2"):
            return 200, {"name": "slipway", "version": VERSION, "extensions": _EXTENSIONS}
        if path.startswith("/v2/models/") and bare.endswith("/infer"):
            return 200, {"model_name": bare.split("/")[3], "model_version": "1", "outputs": _OUTPUTS}
        if headers.get("slipway-control-key") != self._key:
            return 403, {"error": "This API is restricted, expecting header 'slipway-control-key'"}
        if (fence := int(headers.get("slipway-fence", self._fence))) < self._fence:
            led = f"another watcher leads with number {self._fence}"
            return 409, {"error": f"{led}: number {fence} may change nothing here"}
        self._fence = fence
        if bare == "/v2/repository/index":
            return 200, self._index()
        if bare == "/v2/slipway/requests":
            return 200, {"instance": self._noted_instance, "spans": self._spans(int(path.rpartition("=")[2]))}
        parts = bare.split("/")
        if bare.startswith("/v2/repository/models/") and parts[-1] in ("load", "unload"):
            return await (self._load if parts[-1] == "load" else self._unload)(parts[4], body)
        if bare.startswith("/v2/slipway/models/") and parts[-1] == "traffic":
            return 200, {"model": parts[4], "rollout": None}
        return 404, {"error": f"there is nothing at {bare}"}

    def _index(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for name in self._repository.names():
            release, versions = self._serving.get(name, (None, []))
            for version in versions:
                row = {
                    "name": name,
                    "version": str(version),
                    "state": "READY",
                    "reason": "",
                    "condition": "",
                    "failed": False,
                }
                rows.append(row if release is None else {**row, "release": release})
            for version in () if versions else self._unloaded.get(name, ()):
                facts = {"state": "UNAVAILABLE", "reason": "unloaded", "condition": "UNLOADED", "failed": False}
                rows.append({"name": name, "version": str(version), **facts})
            if not versions and name not in self._unloaded:
                rows.append({"name": name})
        return rows

    async def _load(self, name: str, body: bytes) -> Answer:
        config = orjson.loads(body or b"{}").get("parameters", {}).get("config")
        found = self._repository.model(name)
        if found is None:
            said = f"failed to load '{name}', failed to poll from model repository: there is no model of that name"
            return 404, {"error": said, "reason": said, "release": None, "steps": []}
        if config:
            stamp = orjson.loads(config).get("parameters", {}).get("slipway.release", {}).get("string_value")
            found = int(stamp) if stamp else found[0], found[1]
        if self._serving.get(name) == found:
            return 200, {"release": found[0], "steps": []}
        await asyncio.sleep(LOAD_S)
        self._serving[name] = found
        self._began.setdefault(name, time.time())
        self.loads.append((name, found[0], time.time()))
        return 200, {"release": found[0], "steps": _STEPS}

    async def _unload(self, name: str, body: bytes) -> Answer:
        if (found := self._serving.pop(name, None)) is not None:
            self._unloaded[name] = found[1]
        return 200, None

    def _spans(self, after: int) -> list[dict[str, Any]]:
        number = int(time.time() - _STARTED) // SPAN_S * SPAN_S
        if number <= after:
            return []
        start = _STARTED + number - SPAN_S
        slow = [
            {"at": start + n, "id": "", "duration_us": 4400 - 600 * n, "queue_us": 51, "input_us": 8,
             "infer_us": 4302 - 600 * n,
             "output_us": 9, "rows": 1, "batch_size": 1, "arm": "", "trace": "", "code": "", "reason": "", "cause": "",
             "message": ""}
            for n in range(5)
        ]  # fmt: skip
        return [
            {"model": name, "namespace": "", "version": str(version), "number": number, "start": start,
             "end": start + SPAN_S, "slow": slow, "failed": [], "causes": []}
            for name, (_, versions) in self._at_work() for version in versions
        ]  # fmt: skip

    def _at_work(self) -> list[tuple[str, tuple[int | None, list[int]]]]:
        return sorted(self._serving.items())[: self._busy]

    # -- the live feed ---------------------------------------------------------------------------------------------
    def hello(self) -> bytes:
        told = {"server_id": "slipway", "instance": self.instance, "started": self._started, "bounds_us": BOUNDS_US}
        return b"event: hello\ndata: %b\n\n" % orjson.dumps(told)

    def event(self, rows: Callable[[str, int, int | None, bool], bytes], sent: set[object]) -> bytes:
        """Return one event: at first every model, then those that are busy or new. sent: what this subscriber has."""
        busy = {name for name, _ in self._at_work()}
        models = []
        for name, (release, versions) in self._serving.items():
            for version in versions:
                if name in busy or (name, version, release) not in sent:
                    sent.add((name, version, release))
                    models.append(rows(name, version, release, name in busy))
        told = {
            "rss_bytes": 104_878_080, "cpu_seconds": round(0.02 * (time.time() - self._started), 2), "threads": 13, "gpus": [],
            "repositories": {"problems": {}, "held": []},
        }  # fmt: skip
        return b'event: stats\ndata: {"time":%.3f,"server":%b,"unserved":{},"traffic":[],"models":[%b]}\n\n' % (
            time.time(),
            orjson.dumps(told),
            b",".join(models),
        )


class Connection(asyncio.Protocol):
    """One connection: HTTP/1.1 with kept connections; the feed is a chunked stream that never ends."""

    transport: asyncio.Transport

    def __init__(self, server: StandIn) -> None:
        self._server = server
        self._rest = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent: set[object] | None = None  # of a subscriber of the feed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while b"\r\n\r\n" in self._rest:
            head, _, rest = self._rest.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            method, path, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", 0))
            if len(rest) < length:
                return
            body, self._rest = rest[:length], rest[length:]
            if self._server.mode == "hang" and not path.startswith("/stand-in"):
                return
            task = asyncio.get_running_loop().create_task(self._respond(method, path, headers, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if path == "/v2/slipway/live":
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self.transport.write(head)
            self.chunk(self._server.hello())
            self.sent = set()
            return
        status, told = await self._server.answer(method, path, headers, body)
        content = b"" if told is None else orjson.dumps(told)
        kind = b"content-type: application/json\r\n" if content else b""
        self.transport.write(b"HTTP/1.1 %d X\r\n%bcontent-length: %d\r\n\r\n%b" % (status, kind, len(content), content))

    def chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


async def feed(servers: list[StandIn]) -> None:
    """Send an event to every subscriber once a second; the servers are spread over the second, as real ones are."""
    rounds, parts = 0, 20
    due = time.monotonic()
    while True:
        due = max(due + 1 / parts, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        rounds += 1
        asked = REQUESTS * (rounds // parts)
        kept: dict[object, bytes] = {}

        def row(
            name: str,
            version: int,
            release: int | None,
            busy: bool,
            asked: int = asked,
            kept: dict[object, bytes] = kept,
        ) -> bytes:
            key = (name, version, release, busy)
            if key not in kept:
                kept[key] = orjson.dumps(Counters.row(name, version, release, asked if busy else 0))
            return kept[key]

        for server in servers[rounds % parts :: parts]:
            if server.mode != "hang":
                for connection in list(server.open):
                    if connection.sent is not None:
                        connection.chunk(server.event(row, connection.sent))


async def obey(servers: dict[int, StandIn]) -> None:
    """Take orders from the standard input, until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode():
        mode, *ports = line.split()
        for port in ports:
            await servers[int(port)].behave(mode)


async def flap(servers: list[StandIn]) -> None:
    back = False
    while True:
        await asyncio.sleep(FLAP_S)
        back = not back
        for server in servers:
            if server.mode == "flap":
                await server.vanish()
                if back:
                    server._born()
                    await server.listen()


async def run(given: argparse.Namespace) -> None:
    repository = Repository(given.repository)
    servers = {port: StandIn(port, repository, given.key, given.busy, given.loaded) for port in given.ports}
    for server in servers.values():
        await server.listen()
    print("ready", flush=True)
    orders = asyncio.create_task(obey(servers))
    others = [asyncio.create_task(feed(list(servers.values()))), asyncio.create_task(flap(list(servers.values())))]
    await asyncio.wait([orders, *others], return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--key", required=True)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--busy", type=int, default=3)
    parser.add_argument("--loaded", action="store_true", help="every model is loaded at the start")
    with suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
