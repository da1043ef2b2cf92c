"""`slipway.residency`: which models stay in memory, which load on their first request, which make room for others.

Requests pay nothing for it: once a second this looks at the counters of the models that may go.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter, is_ensemble
from serving.resources.memory import NOTHING, MemoryUse

if TYPE_CHECKING:
    from serving.models.model_lifecycle import ModelLifecycle, VersionEntry

log = logging.getLogger(__name__)

PINNED, ON_DEMAND, EVICTABLE = "pinned", "on_demand", "evictable"
PERIOD_S = 1.0
IDLE_SECONDS = 300.0


class Residency(NamedTuple):
    mode: str = PINNED
    idle_seconds: float = IDLE_SECONDS


def residency_of(config: ModelConfig) -> Residency:
    """Of a validated configuration. An ensemble holds nothing: its steps have residencies of their own."""
    value = get_parameter(config, "residency")
    return AWAKE if value is None or is_ensemble(config) else Residency(**value)


AWAKE = Residency()


class ResidencyKeeper:
    """Budgets in bytes, 0 for none; `gpu_budget` is that of each GPU. Runs on the event loop's thread."""

    def __init__(self, host_budget: int = 0, gpu_budget: int = 0) -> None:
        self._host_budget = host_budget
        self._gpu_budget = gpu_budget
        self._lifecycles: list[ModelLifecycle] = []
        self._reserved: list[MemoryUse] = []  # of loads under way
        self._clock: asyncio.Task[None] | None = None

    def add(self, lifecycle: "ModelLifecycle") -> None:
        self._lifecycles.append(lifecycle)

    def watch(self, entry: "VersionEntry") -> None:
        """The entry has been loaded or put to sleep: start looking at the clock where it may go to sleep."""
        entry.used = (_uses(entry), time.monotonic())
        if entry.residency.mode != PINNED and self._clock is None:
            self._clock = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()

    # -- room ------------------------------------------------------------------------------------------------------
    def has_room(self, needed: MemoryUse) -> bool:
        return self._too_much(needed) is None

    @asynccontextmanager
    async def room_for(self, needed: MemoryUse, name: str) -> AsyncIterator[None]:
        """Lets the least recently used models go until there is room; without any left it is loaded all the same."""
        await self._make_room(needed, name)
        self._reserved.append(needed)
        try:
            yield
        finally:
            self._reserved.remove(needed)

    async def _make_room(self, needed: MemoryUse, name: str) -> None:
        while (scarce := self._too_much(needed)) is not None:
            victim = self._least_recently_used(scarce)
            if victim is None:
                log.warning("loading '%s' goes over the budget of the %s: no other model may go", name, scarce)
                return
            lifecycle, entry = victim
            log.info("'%s' makes room for '%s'", lifecycle.name, name)
            lifecycle.sleep(entry)
            await lifecycle.drained()

    def _too_much(self, needed: MemoryUse) -> str | None:
        """What there is too little of: "host", "gpu:0"; None where it fits."""
        if not (self._host_budget or self._gpu_budget):
            return None
        total = sum((entry.memory for _, entry in self._entries()), sum(self._reserved, needed))
        if self._host_budget and total.host > self._host_budget:
            return "host"
        over = [device for device, size in total.gpus if self._gpu_budget and size > self._gpu_budget]
        return f"gpu:{over[0]}" if over else None

    def _least_recently_used(self, scarce: str) -> "tuple[ModelLifecycle, VersionEntry] | None":
        now = time.monotonic()
        for _, entry in self._entries():
            self._look(entry, now)
        candidates = [
            (entry.used[1], number, lifecycle, entry)
            for number, (lifecycle, entry) in enumerate(self._entries())
            if _may_sleep(lifecycle, entry, now) and _holds(entry.memory, scarce)
        ]
        return min(candidates)[2:] if candidates else None

    # -- the clock -------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self._tick(time.monotonic())
            except Exception:
                log.exception("looking for idle models failed; trying again")

    async def _tick(self, now: float) -> None:
        for lifecycle, entry in self._entries():
            self._look(entry, now)
            mode, idle_seconds = entry.residency
            if mode == ON_DEMAND and now - entry.used[1] >= idle_seconds and _may_sleep(lifecycle, entry, now):
                log.info("'%s' was idle for %g s and goes to sleep", lifecycle.name, idle_seconds)
                lifecycle.sleep(entry)
        while (scarce := self._too_much(NOTHING)) is not None:
            victim = self._least_recently_used(scarce)
            if victim is None:
                return
            log.info("'%s' goes to sleep: the models hold more than the budget of the %s", victim[0].name, scarce)
            victim[0].sleep(victim[1])
            await victim[0].drained()

    def _look(self, entry: "VersionEntry", now: float) -> None:
        uses = _uses(entry)
        if uses != entry.used[0] or (entry.model is not None and entry.model.in_flight):
            entry.used = (uses, now)

    def _entries(self) -> "Iterator[tuple[ModelLifecycle, VersionEntry]]":
        for lifecycle in self._lifecycles:
            for entry in lifecycle.versions.values():
                yield lifecycle, entry


def _uses(entry: "VersionEntry") -> int:
    return entry.statistics.success.count + entry.statistics.fail.count


def _may_sleep(lifecycle: "ModelLifecycle", entry: "VersionEntry", now: float) -> bool:
    """Awake, allowed to, nothing under way, no sequence open, and not being loaded anew."""
    model = entry.model
    if entry.residency.mode == PINNED or model is None or entry.asleep or lifecycle.lock.locked():
        return False
    return not model.in_flight and now - entry.used[1] >= _sequence_idle_s(model.config)


def _sequence_idle_s(config: ModelConfig) -> float:
    """How long a sequence may be silent before it ends; Triton's default is a second."""
    if not config.HasField("sequence_batching"):
        return 0.0
    return float(config.sequence_batching.max_sequence_idle_microseconds or 1_000_000) / 1e6


def _holds(memory: MemoryUse, scarce: str) -> bool:
    if scarce == "host":
        return memory.host > 0
    return any(size > 0 and f"gpu:{device}" == scarce for device, size in memory.gpus)
