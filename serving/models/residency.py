"""Puts models to sleep by their `slipway.residency`: idle ones, and the least recently used ones when a memory budget is full.

Requests do no extra work: once a second the manager reads the counters of the models that may sleep.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from repository.config.residency import ON_DEMAND, PINNED
from serving.core.log_context import about
from serving.models.model_version import ModelVersion
from serving.resources.memory import NOTHING, MemoryUse

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class ResidentModel(Protocol):
    """The part of ModelLifecycle that the manager needs."""

    name: str
    lock: asyncio.Lock  # held while the model is loaded or unloaded
    versions: dict[int, ModelVersion]

    def sleep(self, version: ModelVersion) -> "asyncio.Task[None]": ...


class ResidencyManager:
    """Runs on the event loop's thread."""

    def __init__(self, host_budget: int = 0, gpu_budget: int = 0) -> None:
        """The budgets are in bytes; 0 means no budget. `gpu_budget` is the budget of each GPU."""
        self._host_budget = host_budget
        self._gpu_budget = gpu_budget
        self._models: list[ResidentModel] = []
        self._reserved: list[MemoryUse] = []  # the memory reserved for loads under way
        self._idle_task: asyncio.Task[None] | None = None

    def add(self, model: ResidentModel) -> None:
        self._models.append(model)

    def remove(self, model: ResidentModel) -> None:
        self._models.remove(model)

    def watch(self, version: ModelVersion) -> None:
        """Watch a version that was loaded or put to sleep, if its residency allows sleep."""
        version.mark_used(time.monotonic())
        if version.residency.mode != PINNED and self._idle_task is None:
            self._idle_task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._idle_task is not None:
            self._idle_task.cancel()

    # -- memory budgets --------------------------------------------------------------------------------------------
    def has_room(self, needed: MemoryUse) -> bool:
        return self._exceeded(needed) is None

    def budget(self, device: str) -> int:
        """Return the budget of a device ("host", "gpu:0") in bytes; 0 for no budget."""
        return self._host_budget if device == "host" else self._gpu_budget

    @asynccontextmanager
    async def reserve(self, needed: MemoryUse, name: str) -> AsyncIterator[None]:
        """Reserve memory for a load of the model `name`, after `make_room`. If no other model may go to sleep, the load exceeds
        the budget, and a warning is logged."""
        if device := await self.make_room(needed, name):
            log.warning("loading '%s' goes over the budget of the %s: no other model may go", name, device)
        self._reserved.append(needed)
        try:
            yield
        finally:
            self._reserved.remove(needed)

    async def make_room(self, needed: MemoryUse, name: str) -> str:
        """Put the least recently used models to sleep until the budgets have room for the model `name`. Return the device whose
        budget is still too small, or ""."""
        while (device := self._exceeded(needed)) is not None:
            victim = self._least_recently_used(device)
            if victim is None:
                return device
            model, version = victim
            with about(model.name):
                log.info("'%s' makes room for '%s'", model.name, name)
            # Wait only for the victim: another draining model of the version may have requests that wait for the model `name`.
            await asyncio.wait({model.sleep(version)})
        return ""

    def _exceeded(self, needed: MemoryUse) -> str | None:
        """Return the device whose budget the held and needed memory exceeds ("host", "gpu:0"), or None if there is none."""
        if not (self._host_budget or self._gpu_budget):
            return None
        total = sum((version.held for _, version in self._versions()), sum(self._reserved, needed))
        if self._host_budget and total.host > self._host_budget:
            return "host"
        over = [device for device, size in total.gpus if self._gpu_budget and size > self._gpu_budget]
        return f"gpu:{over[0]}" if over else None

    def _least_recently_used(self, device: str) -> tuple[ResidentModel, ModelVersion] | None:
        """Return the least recently used version on that device that may sleep."""
        now = time.monotonic()
        for _, version in self._versions():
            version.notice_use(now)
        candidates = [
            (version.last_used, number, model, version)
            for number, (model, version) in enumerate(self._versions())
            if may_sleep(model, version, now) and _holds(version.held, device)
        ]
        return min(candidates)[2:] if candidates else None

    # -- idle models -----------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self._let_go(time.monotonic())
            except Exception:
                log.exception("looking for idle models failed; trying again")

    async def _let_go(self, now: float) -> None:
        """Put idle models to sleep, then others as long as all models together exceed a budget."""
        for model, version in self._versions():
            version.notice_use(now)
            mode, idle_seconds = version.residency
            if mode == ON_DEMAND and now - version.last_used >= idle_seconds and may_sleep(model, version, now):
                with about(model.name):
                    log.info("'%s' was idle for %g s and goes to sleep", model.name, idle_seconds)
                model.sleep(version)
        while (device := self._exceeded(NOTHING)) is not None:
            victim = self._least_recently_used(device)
            if victim is None:
                return
            model, version = victim
            with about(model.name):
                log.info("'%s' goes to sleep: the models hold more than the budget of the %s", model.name, device)
            await asyncio.wait({model.sleep(version)})

    def _versions(self) -> Iterator[tuple[ResidentModel, ModelVersion]]:
        for model in self._models:
            for version in model.versions.values():
                yield model, version


def may_sleep(model: ResidentModel, version: ModelVersion, now: float) -> bool:
    """Return whether the weights of a version may be freed now, to make room or because it is idle."""
    return not model.lock.locked() and version.may_sleep(now)


def _holds(memory: MemoryUse, device: str) -> bool:
    if device == "host":
        return memory.host > 0
    return any(size > 0 and f"gpu:{number}" == device for number, size in memory.gpus)
