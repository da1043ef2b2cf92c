"""People and programs that use a dashboard and its inference servers in closed loops, and what fails of it by reason."""

import asyncio
import contextlib
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar

import grpc
import httpx

from tests.support.serving_process import PATIENCE_S

PAGES = ("/", "/models/", "/jobs/", "/servers/", "/activity/", "/models/base/")
LISTS = ("models", "jobs", "audit", "servers", "models/base")
INPUT: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}
Ask = Callable[[httpx.AsyncClient], Awaitable[None]]


class Failed(Exception):
    """A request failed. The text is the reason."""


class Traffic:
    """Clients in a closed loop. asked, failures: how many, by phase and kind, and by phase, kind and reason.

    web: yields the address of the web process that gets the next request. token, password: of an administrator. inference: the
    address of the inference server. model: an ONNX file that doubles, and serves as `base`.
    """

    PAUSE_S = 0.1  # between two requests of a client
    PAUSES: ClassVar = {"inference": 0.01}

    def __init__(
        self,
        web: Callable[[], contextlib.AbstractContextManager[str]],
        token: str,
        password: str,
        inference: str,
        model: bytes,
        phase: str,
    ) -> None:
        self._web, self._password, self._inference, self._model = web, password, inference, model
        self._bearer = {"Authorization": f"Bearer {token}"}
        self.phase = phase
        self.asked: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str, str]] = Counter()
        self.slowest: dict[tuple[str, str], float] = {}
        self._going = True

    @contextlib.asynccontextmanager
    async def running(self, seconds: float) -> AsyncIterator[None]:
        """Ask until the block ends. It begins after some seconds of traffic."""
        async with asyncio.TaskGroup() as clients:
            for kind, ask in self.kinds():
                clients.create_task(self._loop(kind, ask))
            try:
                await asyncio.sleep(seconds)
                yield
            finally:
                self._going = False

    def kinds(self) -> list[tuple[str, Ask]]:
        """Return what each client asks, with its name."""
        return [
            *(("pages", self._visit), ("pages", self._visit), ("REST", self._list), ("REST", self._list)),
            *(("publishing", self._publish), ("publishing", self._publish), ("inference", self._infer)),
        ]

    async def _loop(self, kind: str, ask: Ask) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S, follow_redirects=True) as client:
            while self._going:
                phase, began = self.phase, time.monotonic()
                try:
                    await ask(client)
                except (Failed, httpx.HTTPError, grpc.aio.AioRpcError) as error:
                    self.fail(phase, kind, time.monotonic() - began, error)
                self.asked[phase, kind] += 1
                took = time.monotonic() - began
                self.slowest[phase, kind] = max(took, self.slowest.get((phase, kind), 0.0))
                await asyncio.sleep(self.PAUSES.get(kind, self.PAUSE_S))

    def fail(self, phase: str, kind: str, took: float, error: Exception) -> None:
        """Keep why a request failed, and say it at the first time."""
        what = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
        reason = f"{type(error).__name__}: {what}"[:300]
        self.failures[phase, kind, reason] += 1
        if self.failures[phase, kind, reason] == 1:
            print(f"  {kind} failed after {took:.1f} s: {reason}", flush=True)

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, *good: int, **how: Any) -> httpx.Response:
        """Ask one of the web processes. Raises Failed for a status other than 200 and `good`."""
        with self._web() as address:
            answer = await client.request(method, f"{address}{path}", **how)
        if answer.status_code not in (200, *good):
            where = re.sub(r"[0-9a-f-]{8,}|\d+", "N", path)
            said = answer.text if "json" in answer.headers.get("Content-Type", "") else ""
            raise Failed(f"{method} {where}: {answer.status_code} {said}")
        return answer

    async def _visit(self, client: httpx.AsyncClient) -> None:
        """Read a page, and one of the files that it names; sign in if nobody is."""
        page = await self._ask(client, "GET", random.choice(PAGES))
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        if 'name="password"' in page.text and token:
            given = {"username": "admin", "password": self._password, "csrfmiddlewaretoken": token[1]}
            page = await self._ask(client, "POST", page.url.raw_path.decode(), data=given)
            if 'name="password"' in page.text:
                raise Failed("the sign-in was not accepted")
        if "<h1" not in page.text:
            raise Failed(f"no heading on {page.url.path}")
        await self._ask(client, "GET", random.choice(re.findall(r'(?:src|href)="(/static/[^"#]+)"', page.text)))

    async def _list(self, client: httpx.AsyncClient) -> None:
        await self._ask(client, "GET", f"/api/v1/{random.choice(LISTS)}", headers=self._bearer)

    async def _infer(self, client: httpx.AsyncClient, name: str = "base") -> None:
        await self.infer(client, self._inference, name)

    async def infer(self, client: httpx.AsyncClient, server: str, name: str) -> int:
        """Ask a model at the address of a server, and return the version that answered. Raises Failed for a wrong answer."""
        answer = await client.post(f"{server}/v2/models/{name}/infer", json={"inputs": [INPUT]})
        if answer.status_code != 200:
            raise Failed(f"{answer.status_code} {answer.text}")
        said = answer.json()
        return self.checked(int(said["model_version"]), said["outputs"][0]["data"])

    def checked(self, version: int, values: Sequence[float]) -> int:
        """Return the version. Raises Failed if its answer is not `version` + 1 times the input."""
        if list(values) != [INPUT["data"][0] * (version + 1)]:
            raise Failed(f"version {version} answered {values}")
        return version

    async def _publish(self, client: httpx.AsyncClient) -> None:
        """Publish a model, ask it, and delete it."""
        name = f"m{secrets.token_hex(6)}"
        await self.publish(client, name)
        await self._infer(client, name)
        await self._ask(client, "POST", f"/api/v1/models/{name}/unload", headers=self._bearer)
        await self._until(client, f"/api/v1/models/{name}", "unloaded")
        await self._ask(client, "DELETE", f"/api/v1/models/{name}?confirm={name}", 204, headers=self._bearer)

    async def publish(self, client: httpx.AsyncClient, name: str, further: bytes = b"") -> None:
        """Publish a model, and wait until it is ready. further: the file of its next version, which gets no requests."""
        model = further or self._model
        files = {"model_name": name, "files": [{"path": "model.onnx", "size": len(model)}]}
        upload = (await self._ask(client, "POST", "/api/v1/uploads", 201, json=files, headers=self._bearer)).json()
        address = f"/api/v1/uploads/{upload['id']}"
        sent = {"content": model, "headers": {**self._bearer, "Content-Type": "application/octet-stream"}}
        await self._ask(client, "PUT", f"{address}/files/0?offset=0", 204, **sent)
        await self._ask(client, "POST", f"{address}/complete", 202, headers=self._bearer)
        await self._until(client, address, "inspected")
        choices = {"load": False} if further else {"make_live": True}
        await self._ask(client, "POST", f"{address}/publish", 201, 202, json=choices, headers=self._bearer)
        await self._until(client, address, "published")
        await self._until(client, f"/api/v1/models/{name}", "ready")

    async def _until(self, client: httpx.AsyncClient, path: str, expected: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = (await self._ask(client, "GET", path, headers=self._bearer)).json()
            if found["state"] == expected:
                return
            if found["state"] == "failed" or time.monotonic() > deadline:
                raise Failed(
                    f"expected {expected}, but it is {found['state']}: {found.get('error') or found.get('reason')}"
                )
            await asyncio.sleep(0.2)

    def begin(self, phase: str) -> None:
        self.phase = phase
        print(f"{phase} ...", flush=True)

    def report(self) -> None:
        for phase in dict.fromkeys(phase for phase, _ in self.asked):
            counts = ", ".join(
                f"{kind} {count:,} (slowest {self.slowest[of, kind]:.1f} s)"
                for (of, kind), count in sorted(self.asked.items())
                if of == phase
            )
            print(f"{phase}: {counts}; failed {sum(n for (of, *_), n in self.failures.items() if of == phase)}")
        for (phase, kind, reason), count in self.failures.items():
            print(f"  {count:>5} {phase}, {kind}: {reason}")
        print(f"{self.asked.total():,} in all, {self.failures.total():,} failed", flush=True)
