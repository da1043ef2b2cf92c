"""Disturbs the running system by one change or kill after the other, and decides which failures are expected."""

import asyncio
import os
import random
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.soak import models
from benchmarks.soak.dashboard import PATIENCE_S, Dashboard
from benchmarks.soak.load import Traffic
from benchmarks.soak.processes import found
from benchmarks.soak.record import Segment
from tests.support.up_process import Up

NOTHING = "nothing"
PAUSE_S = 0.3  # the pause between two disturbances
KEPT_VERSIONS = 3
# If a stock gRPC channel cannot connect, all its calls fail with that error until it retries: after 1 s, plus jitter of up to a
# fifth (gRPC's connection backoff).
CHANNEL_BACKOFF_S = 1.2


@dataclass
class Disturbance:
    """excuses: returns whether a request to a model may fail for a reason meanwhile. ended: inf until the disturbance ends."""

    name: str
    excuses: Callable[[str, str], bool]
    started: float
    ended: float = float("inf")


def nobody(model: str, reason: str) -> bool:
    return False


def everybody(model: str, reason: str) -> bool:
    """Excuse all failures except hangs and wrong answers, because the server or a frontend worker was killed."""
    return not reason.startswith(("no answer", "a wrong answer"))


def askers_of_python(model: str, reason: str) -> bool:
    """Excuse requests that were in the killed child of a Python model, or that arrived before its replacement."""
    return model in models.NEED_PYTHON and everybody(model, reason)


class Disturbances:
    """All disturbances. `judge` finds those that may have caused a failure."""

    def __init__(self, up: Up, dashboard: Dashboard, segment: Segment) -> None:
        self._up = up
        self._dashboard = dashboard
        self._segment = segment
        self._recent: deque[Disturbance] = deque(maxlen=20)
        self._client = httpx.AsyncClient(base_url=up.http_url, timeout=60.0)
        self._factors = {models.SCALE: {1: 2.0}, models.PYTHON: {1: 2.0}}
        # The child processes of the example models, which get no requests.
        self._idle = {process.pid for process in found(up.pid).get("Python children", [])}
        self.traffic: Traffic | None = None
        # name -> (the disturbance, the failures that it excuses)
        self.changes: dict[str, tuple[Callable[[], Awaitable[None]], Callable[[str, str], bool]]] = {
            "batching edited": (self._edit_batching, nobody),
            "instances edited": (self._edit_instances, nobody),
            "batch size edited, which reloads": (self._edit_batch_size, nobody),
            "a version published": (self._publish, nobody),
            "another version made live": (self._make_live, nobody),
            "a version archived": (self._archive, nobody),
            "an idle model unloaded and loaded": (self._unload, nobody),
            "a worker killed": (self._kill("worker"), nobody),
            "watch killed": (self._kill("watch"), nobody),
            "the dashboard killed": (self._kill("dashboard"), nobody),
            "a Python child killed": (self._kill("Python children"), askers_of_python),
            "a Python child stopped": (self._kill("Python children", signal.SIGSTOP), askers_of_python),
        }

    async def close(self) -> None:
        await self._client.aclose()

    def judge(self, model: str, reason: str, sent: float) -> tuple[str, bool]:
        """Return the disturbances since a request was sent, and whether one of them excuses the failure."""
        began = sent - CHANNEL_BACKOFF_S if "failed to connect to all addresses" in reason else sent
        under_way = [one for one in self._recent if one.ended > began]
        during = ", ".join(one.name for one in under_way) or NOTHING
        return during, any(one.excuses(model, reason) for one in under_way)

    # -- one after the other -------------------------------------------------------------------------------------------
    async def run(self, enough: Callable[[], bool]) -> None:
        """Repeat the disturbances in random order, each at least once, until `enough` returns true."""
        while True:
            for name in random.sample(list(self.changes), len(self.changes)):
                do, excuses = self.changes[name]
                if enough() and self._segment.disturbances[name]:
                    continue
                await self._do(name, do, excuses)
            if enough():
                return

    async def kill_the_server(self) -> None:
        await self._do("the server killed", self._kill("inference server"), everybody)

    async def _do(self, name: str, do: Callable[[], Awaitable[None]], excuses: Callable[[str, str], bool]) -> None:
        disturbance = Disturbance(name, excuses, time.monotonic())
        self._recent.append(disturbance)
        try:
            await do()
            self._segment.disturbances[name] += 1
        except (RuntimeError, TimeoutError) as error:
            self._segment.problems.append(f"{name}: {error}")
            self._segment.disturbances[f"{name}: did not succeed"] += 1
        disturbance.ended = time.monotonic()
        await asyncio.sleep(PAUSE_S)

    # -- changes by a person -------------------------------------------------------------------------------------------
    async def _edit_batching(self) -> None:
        delay = random.randrange(1, 500)
        text = f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}"
        name = random.choice((models.SCALE, models.PYTHON))
        await self._dashboard.configure(name, r"dynamic_batching \{[^}]*\}", text)
        await self._served(name, lambda config: _delay(config) == delay)

    async def _edit_instances(self) -> None:
        name = random.choice((models.SCALE, models.PYTHON))
        count = 3 - (await self._config(name))["instance_group"][0]["count"]
        await self._dashboard.configure(name, r"count: \d+", f"count: {count}")
        await self._served(name, lambda config: config["instance_group"][0]["count"] == count)

    async def _edit_batch_size(self) -> None:
        name = random.choice((models.SCALE, models.PYTHON))
        size = 24 - (await self._config(name))["max_batch_size"]
        await self._dashboard.configure(name, r"max_batch_size: \d+", f"max_batch_size: {size}")
        await self._served(name, lambda config: config["max_batch_size"] == size)

    async def _publish(self) -> None:
        name = random.choice((models.SCALE, models.PYTHON))
        factor = float(random.randrange(2, 60))
        assert self.traffic is not None
        self.traffic.factors.add(factor)
        number = await self._dashboard.publish(name, factor)
        self._factors[name][number] = factor
        await self._answers(name, factor)

    async def _make_live(self) -> None:
        name = random.choice((models.SCALE, models.PYTHON))
        number = random.choice(await self._dashboard.versions(name))
        await self._dashboard.make_live(name, number)
        await self._answers(name, self._factors[name][number])

    async def _archive(self) -> None:
        name = random.choice((models.SCALE, models.PYTHON))
        for number in (await self._dashboard.expendable_versions(name))[KEPT_VERSIONS:]:
            await self._dashboard.ask("POST", f"models/{name}/versions/{number}/archive")

    async def _unload(self) -> None:
        await self._dashboard.unload(models.SPARE)
        await self._dashboard.load(models.SPARE)

    # -- kills ---------------------------------------------------------------------------------------------------------
    def _kill(self, task: str, number: int = signal.SIGKILL) -> Callable[[], Awaitable[None]]:
        async def kill() -> None:
            before = {process.pid for process in found(self._up.pid).get(task, [])} - self._idle
            if not before:
                raise RuntimeError(f"there is no {task}")
            victim = random.choice(sorted(before))
            os.kill(victim, number)
            await self._replaced(task, victim, len(before))
            await self._dashboard.ask("GET", "me")
            for name in (*models.NEED_PYTHON, models.SCALE, models.SEQUENCE):
                await self._until(lambda name=name: self._ready(name), f"'{name}' is ready")  # type: ignore[misc]

        return kill

    def change_the_frontend_workers(self) -> None:
        """Add kills and stops of frontend workers, during which only their own connections may fail."""
        self.changes["a frontend worker killed"] = (self._kill("frontend workers"), everybody)
        self.changes["a frontend worker stopped"] = (self._kill("frontend workers", signal.SIGSTOP), everybody)

    async def _replaced(self, task: str, pid: int, count: int) -> None:
        async def again() -> bool:
            now = {process.pid for process in found(self._up.pid).get(task, [])} - self._idle
            return pid not in now and len(now) >= count

        await self._until(again, f"another {task}")

    # -- state of the server -------------------------------------------------------------------------------------------
    async def _config(self, name: str) -> Any:
        answer = await self._client.get(f"/v2/models/{name}/config")
        return answer.raise_for_status().json()

    async def _ready(self, name: str) -> bool:
        return (await self._client.get(f"/v2/models/{name}/ready")).status_code == 200

    async def _served(self, name: str, fits: Callable[[Any], bool]) -> None:
        async def served() -> bool:
            return fits(await self._config(name))

        await self._until(served, f"the server has the new configuration of '{name}'")

    async def _answers(self, name: str, factor: float) -> None:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}

        async def answers() -> bool:
            answer = await self._client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
            return answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [factor]

        await self._until(answers, f"'{name}' answers with the factor {factor}")

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if await condition():
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {PATIENCE_S:.0f} s")
            await asyncio.sleep(0.1)


def _delay(config: Any) -> int:
    return int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0))
