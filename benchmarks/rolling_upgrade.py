"""Counts the requests that fail while three servers behind HAProxy are replaced one after another, and while one is killed.

    python -m benchmarks.rolling_upgrade --requests 1000000

HAProxy runs with deploy/haproxy.cfg. Half of the clients keep their connection, the others open one for each request, over HTTP
and over gRPC. No client retries. The servers are stopped with SIGTERM in turns and started again until enough requests are
answered. Then one server after another is killed with SIGKILL: only requests that it was answering may fail. The last part
balances TCP connections, where a kept connection stays on its server, and compares the busiest server with the mean after an
upgrade, with and without a maximum age of connections. The exit status is 1 if a bound does not hold.
"""

import argparse
import asyncio
import contextlib
import http.client
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import uvloop
from tritonclient.grpc import service_pb2 as pb

from tests.support import engines
from tests.support.model_factory import onnx_scale
from tests.support.ports import HOST, free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, ServerProcess, wait_until

CONFIGURATION = ROOT / "deploy" / "haproxy.cfg"
SERVERS = 3
MODEL = "scale"
BODY = b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}'
HEAD = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: fleet\r\nContent-Length: {len(BODY)}\r\n"
CALL = "/inference.GRPCInferenceService/ModelInfer"
KINDS = ("HTTP, kept", "HTTP, new", "gRPC, kept", "gRPC, new")
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
GIVES_UP = 1000  # failures
BUSIEST = 1.2  # times the mean
AGE_MS = 3000
CHECK_S = 0.25  # between two checks of HAProxy


def balancing(http: int, grpc: int, servers: list[tuple[int, int]]) -> str:
    """Return deploy/haproxy.cfg with these ports. servers: the HTTP and gRPC port of each of three."""
    text = CONFIGURATION.read_text()
    for name, port in (("*:8000", http), ("*:8001", grpc)):
        text = text.replace(name, f"{HOST}:{port}")
    for number, ports in enumerate(servers, 1):
        for name, port in zip(("8000", "8001"), ports, strict=True):
            text = text.replace(f"10.0.0.{number}:{name}", f"{HOST}:{port}")
    return text


# -- the fleet ---------------------------------------------------------------------------------------------------------
class Fleet:
    """Servers on fixed ports, and a HAProxy before them. http, grpc: the ports of HAProxy."""

    def __init__(self, folder: Path, *flags: str, tcp: bool = False) -> None:
        """tcp: balance connections instead of requests."""
        self.tcp = tcp
        self.http, self.grpc, *ports = free_ports(2 + 2 * SERVERS)
        self._ports = list(zip(ports[:SERVERS], ports[SERVERS:], strict=True))
        self.servers = [
            ServerProcess(folder / "models", *flags, f"--http-port={http_port}", f"--grpc-port={grpc_port}")
            for http_port, grpc_port in self._ports
        ]
        onnx_scale(folder / "models", MODEL)

    @contextlib.contextmanager
    def running(self) -> Iterator["Fleet"]:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            stack.enter_context(engines.haproxy(self.configuration(), self.http))
            wait_until(self._is_balanced, what="HAProxy's first answer")
            yield self

    def configuration(self) -> str:
        """Return deploy/haproxy.cfg with the ports of this fleet and with faster checks."""
        text = balancing(self.http, self.grpc, self._ports).replace("inter 1s", f"inter {CHECK_S * 1000:.0f}ms")
        if self.tcp:
            text = text.replace("mode http", "mode tcp").replace(" proto h2", "").replace("balance leastconn", "")
        return text

    def _is_balanced(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
        with contextlib.closing(connection), contextlib.suppress(OSError):  # it does not listen yet
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        return False

    async def replace(self, number: int, how: signal.Signals, load: "Load") -> None:
        """Stop a server, start it again, and wait until HAProxy sends it requests of the load, or may send it connections."""
        server = self.servers[number]
        status = await asyncio.to_thread(server.signal, how, PATIENCE_S)
        assert status == (0 if how == signal.SIGTERM else -how), f"the server ended with {status}"
        await asyncio.to_thread(server.start)
        if self.tcp:  # kept connections stay where they are
            await asyncio.sleep(4 * CHECK_S)
            return
        async with asyncio.timeout(PATIENCE_S):
            while load.failures.total() < GIVES_UP and not self.answered(number):
                await asyncio.sleep(0.1)

    def answered(self, number: int) -> int:
        """Return how many requests the server has answered since it started."""
        status, answer = self.servers[number].get(f"/v2/models/{MODEL}/stats")
        return int(answer["model_stats"][0]["inference_stats"]["success"]["count"]) if status == 200 else 0


# -- the clients -------------------------------------------------------------------------------------------------------


class Load:
    """Clients in a closed loop. failures: how often each reason was given. asked: requests that have ended, by kind.

    pause_s: how long each client waits between two requests.
    """

    def __init__(self, fleet: Fleet, clients: int, kinds: tuple[str, ...] = KINDS, pause_s: float = 0.0) -> None:
        self._fleet, self._pause_s = fleet, pause_s
        self._clients = [kind for kind in kinds for _ in range(clients)]
        self._going = True
        self.asked: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        """Ask until the block ends. Requests under way are awaited."""
        async with asyncio.TaskGroup() as clients:
            for kind in self._clients:
                clients.create_task(self._ask_on(kind))
            try:
                yield self
            finally:
                self._going = False

    async def _ask_on(self, kind: str) -> None:
        client = _HttpClient(self._fleet.http) if kind.startswith("HTTP") else _GrpcClient(self._fleet)
        try:
            while self._going:
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await client.ask(keeps=kind.endswith("kept"))
                except (OSError, EOFError, ValueError, grpc.aio.AioRpcError) as error:
                    self.failures[f"{kind}: {_reason(error)}"] += 1
                    await client.close()
                self.asked[kind] += 1
                await asyncio.sleep(self._pause_s)
        finally:
            await client.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


class _HttpClient:
    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, keeps: bool) -> None:
        """Raises OSError, EOFError or ValueError if the request fails."""
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._connection
        writer.write((HEAD + ("\r\n" if keeps else "Connection: close\r\n\r\n")).encode() + BODY)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        answer = await reader.readexactly(length)
        if not head.startswith(b"http/1.1 200") or b"6.0" not in answer:
            raise ValueError(f"{head[:13]!r} {answer[:100]!r}")
        if not keeps or b"connection: close" in head:
            await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


class _GrpcClient:
    """Through HAProxy's HTTP mode it does not retry. A gRPC client that sees the GOAWAY of a server itself must start calls
    again that it has not sent yet, as stock clients do without any setting."""

    def __init__(self, fleet: Fleet) -> None:
        self._address = f"127.0.0.1:{fleet.grpc}"
        self._options = (OWN_CONNECTION, ("grpc.enable_retries", int(fleet.tcp)))
        self._channel: grpc.aio.Channel | None = None
        self._request = pb.ModelInferRequest(model_name=MODEL)
        tensor = self._request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
        tensor.contents.fp32_contents.append(3.0)

    async def ask(self, keeps: bool) -> None:
        """Raises AioRpcError if the call fails."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=self._options)
        call = self._channel.unary_unary(CALL, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)
        await call(self._request)
        if not keeps:
            await self.close()

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


# -- the parts ---------------------------------------------------------------------------------------------------------
async def upgrade(fleet: Fleet, load: Load, requests: int) -> None:
    """Replace every server in turn, until as many requests have ended."""
    while True:
        for number in range(SERVERS):
            await fleet.replace(number, signal.SIGTERM, load)
            if load.failures.total() >= GIVES_UP:
                return
        if load.asked.total() >= requests:
            return


async def kill(fleet: Fleet, load: Load) -> None:
    for number in range(SERVERS):
        await fleet.replace(number, signal.SIGKILL, load)


async def balance(fleet: Fleet, load: Load, seconds: float) -> float:
    """Replace every server in turn, and wait. Return the requests of the busiest server in the next seconds, divided by the
    mean."""
    await upgrade(fleet, load, 0)
    await asyncio.sleep(2.5 * AGE_MS / 1000)
    before = [fleet.answered(number) for number in range(SERVERS)]
    await asyncio.sleep(seconds)
    counts = [fleet.answered(number) - count for number, count in enumerate(before)]
    return max(counts) / (sum(counts) / SERVERS)


def _say(part: str, load: Load, began: float) -> None:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(load.asked.items()))
    print(f"{part}: {load.asked.total():,} requests in {time.monotonic() - began:.0f} s ({kinds})")
    print(f"  failed: {load.failures.total():,}")
    for reason, count in load.failures.most_common(20):
        print(f"    {count:>6} {reason}", flush=True)


async def measure(requests: int, clients: int, workers: int) -> bool:
    """Run every part. Return whether all bounds hold."""
    flags = ("--behind-load-balancer=true", "--drain-secs=3", f"--frontend-workers={workers}")
    ages = (f"--http-max-connection-age={AGE_MS}", f"--grpc-max-connection-age={AGE_MS}")
    good = True
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder), *flags, *ages).running() as fleet:
        began = time.monotonic()
        async with Load(fleet, clients).running() as load:
            await upgrade(fleet, load, requests)
        _say("SIGTERM", load, began)
        good &= not load.failures
        began = time.monotonic()
        async with Load(fleet, clients).running() as load:
            await kill(fleet, load)
        _say("SIGKILL", load, began)
        good &= load.failures.total() <= 4 * clients * SERVERS
    for name, more in (("no maximum age", ()), (f"a maximum age of {AGE_MS} ms", ages)):
        with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder), *flags, *more, tcp=True).running() as fleet:
            began = time.monotonic()
            async with Load(fleet, 15, ("HTTP, kept", "gRPC, kept")).running() as load:
                ratio = await balance(fleet, load, 3 * AGE_MS / 1000)
            _say(f"TCP, {name}", load, began)
            print(f"  busiest server: {ratio:.2f} times the mean", flush=True)
            good &= not load.failures and (not more or ratio <= BUSIEST)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=4, help="of each of the four kinds")
    parser.add_argument("--frontend-workers", type=int, default=0)
    given = parser.parse_args()
    return 0 if uvloop.run(measure(given.requests, given.clients, given.frontend_workers)) else 1


if __name__ == "__main__":
    sys.exit(main())
