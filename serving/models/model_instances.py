"""The instances of one loaded model on their devices, the backend with its weights, and the memory that they hold."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.inline_execution import inline_below_us
from serving.backends.base.backend import Backend, ModelSpec
from serving.backends.table import make_backend
from serving.core.batch import Batch, Send
from serving.core.errors import unexpected
from serving.execution.crash_trace import runner
from serving.execution.instance import Instance, ignore_progress
from serving.execution.instance_groups import Placement, placements
from serving.execution.warmup import warmup_batches
from serving.models.load_report import LoadProgress
from serving.resources.memory import NOTHING, Growth, MemoryUse, files_bytes, larger_use, memory_growth, weights_use
from serving.resources.runtime import Runtime
from serving.scheduling.instance_scheduler import InstanceScheduler
from serving.scheduling.sequence_batch import SequenceBatchScheduler

log = logging.getLogger(__name__)


async def all_of(works: Iterable[Coroutine[None, None, None]]) -> None:
    """Await all works, then raise the error of the first work that failed."""
    results = await asyncio.gather(*works, return_exceptions=True)
    failure = next((result for result in results if isinstance(result, BaseException)), None)
    if failure is not None:
        raise failure


class ModelInstances:
    """Has no instances before `load` and after `free`. Runs on the event loop's thread."""

    def __init__(self, spec: ModelSpec, runtime: Runtime, scheduler: InstanceScheduler, on_sent: Send) -> None:
        """scheduler: gives batches to instances, and takes finished ones back. on_sent: takes answers outside of batches."""
        self.warnings: list[str] = []
        self._spec = spec
        self._runtime = runtime
        self._loop = runtime.loop
        self._scheduler = scheduler
        self._on_sent = on_sent
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._backend: Backend | None = None
        self._running: list[Instance] = []
        # For each instance that only finishes its open sequences: the task that stops it -> the future that the task waits for.
        self._leaving: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        self._files = 0  # the size of the model's files in bytes
        self._load = Growth()  # of the first load, without later changes of instances
        self._grown = NOTHING  # growth of the server's memory while instances were loaded and changed

    @property
    def running(self) -> Sequence[Instance]:
        return self._running

    @property
    def memory(self) -> MemoryUse:
        """Return the memory that the instances hold: the last measured size of their child processes, or else the weights."""
        processes = self._processes()
        if processes:
            return MemoryUse(self._runtime.child_memory.of(processes), self._grown.gpus)
        return weights_use(self._files, (instance.device for instance in self._running))

    @property
    def held(self) -> MemoryUse:
        """Return the memory that budgets count for the instances."""
        return self.memory if self._processes() else larger_use(self.memory, self._grown)

    @property
    def grown(self) -> MemoryUse:
        """Return the growth of the server's memory during the load: a share by size if other loads ran as well."""
        return larger_use(self._load.share(), self._grown)

    async def load(self, config: ModelConfig) -> None:
        """Read the weights and create every instance. On failure, free everything and raise a ServingError."""
        spec, runtime = self._spec, self._runtime
        try:
            self._backend = make_backend(spec)
            self._files = await runtime.in_thread(files_bytes, spec.version_dir)
            with runtime.meter.measure() as growth:
                loading = runner("loading", spec.name, spec.version, spec.model_file)
                await runtime.in_thread(loading, self._backend.load)
                await self._place(self._backend, config, self._make_ready)
                growth.weight = 0 if self._processes() else self._files
            self._load = growth
            self._grown = memory_growth(growth, self._gpus())
        except Exception as error:
            await self.free()
            raise unexpected(error, f"loading '{spec.name}'") from error

    async def warm_up(self, config: ModelConfig, progress: LoadProgress | None = None) -> None:
        """Run the warm-up requests of every instance, once after `load`. On failure, free everything and raise ServingError."""
        try:
            warmups = [(instance, self._warmup(config)) for instance in self._running]
            if progress is not None:
                progress.expect(sum(len(batches) for _, batches in warmups))
            on_each = progress.advance if progress is not None else ignore_progress
            await all_of(instance.warm_up(batches, on_each) for instance, batches in warmups)
        except Exception as error:
            await self.free()
            raise unexpected(error, f"loading '{self._spec.name}'") from error

    async def reconfigure(self, config: ModelConfig) -> None:
        """Create and stop instances to match another configuration, without reading the weights again."""
        if self._backend is None:
            return
        before = list(self._running)
        with self._runtime.meter.measure() as growth:
            await self._place(self._backend, config, partial(self._make_warm, config))
        if self._running != before:
            self._grown += memory_growth(growth, self._gpus())

    async def free(self) -> None:
        """Stop every instance once its batch is done, and free the weights."""
        for vacated in self._leaving.values():
            if not vacated.done():
                vacated.set_result(None)
        instances, self._running = self._running, []
        await asyncio.gather(*self._leaving)
        await asyncio.gather(*(self._take_away(instance) for instance in instances))
        if self._backend is not None:
            backend, self._backend = self._backend, None
            await self._runtime.in_thread(backend.unload)

    # -- placing ---------------------------------------------------------------------------------------------------
    async def _place(
        self, backend: Backend, config: ModelConfig, start: Callable[[Instance], Coroutine[None, None, None]]
    ) -> None:
        """Start the instances that the configuration's groups lack, then stop the surplus ones."""
        wanted, self.warnings = placements(config, type(backend), self._spec.strict_devices)
        for warning in self.warnings:
            log.warning("model '%s': %s", self._spec.name, warning)
        surplus = list(self._running)
        missing: list[Placement] = []
        for place in wanted:
            match = next((one for one in surplus if one.placement[1:] == place[1:]), None)
            if match is None:
                missing.append(place)
            else:
                surplus.remove(match)
        started = [self._make(backend, place) for place in missing]
        try:
            await all_of(start(one) for one in started)
        except Exception:  # not CancelledError, so that a shutdown does not wait for an instance that is being made
            await asyncio.gather(*(self._stop(instance) for instance in started))
            raise
        for instance in started:
            self._running.append(instance)
            self._scheduler.add_instance(instance)
        # Several instances should run at the same time, so each gets a part of the loop's time.
        bound_ns = int(inline_below_us(config) * 1000) // max(1, len(wanted))
        for instance in self._running:
            instance.set_inline_bound(bound_ns)
        for instance in surplus:
            await self._let_go(instance)

    def _make(self, backend: Backend, place: Placement) -> Instance:
        cores = self._runtime.host_policies.get(place.policy)
        return Instance(
            backend,
            place,
            self._loop,
            self._runtime.loop_time,
            self._scheduler.batch_done,
            self._on_sent,
            self._decoupled,
            cores,
        )

    async def _make_ready(self, instance: Instance) -> None:
        if self._runtime.limiter is not None:
            self._runtime.limiter.register(instance, instance.placement.demand, self._spec.name)
        await instance.start()

    async def _make_warm(self, config: ModelConfig, instance: Instance) -> None:
        await self._make_ready(instance)
        await instance.warm_up(self._warmup(config))

    def _warmup(self, config: ModelConfig) -> list[Batch]:
        """Return the warm-up batches of one instance."""
        batches = warmup_batches(config, self._spec)
        if isinstance(self._scheduler, SequenceBatchScheduler):
            self._scheduler.complete_warmup(batches)
        return batches

    async def _let_go(self, instance: Instance) -> None:
        """Take an instance out of service. Its open sequences finish on it. New sequences begin on other instances."""
        self._running.remove(instance)
        vacated = self._scheduler.vacate(instance)
        if vacated is None:
            await self._take_away(instance)
            return
        leaving = self._loop.create_task(self._take_away_when(instance, vacated))
        self._leaving[leaving] = vacated
        leaving.add_done_callback(self._leaving.pop)

    async def _take_away_when(self, instance: Instance, vacated: "asyncio.Future[None]") -> None:
        await vacated
        await self._take_away(instance)

    async def _take_away(self, instance: Instance) -> None:
        """Remove an instance from the scheduler, and stop it once its batch is done."""
        await self._scheduler.remove_instance(instance)
        await self._stop(instance)

    async def _stop(self, instance: Instance) -> None:
        if self._runtime.limiter is not None:
            self._runtime.limiter.unregister(instance)
        await instance.stop()

    def _processes(self) -> list[int]:
        return [process for instance in self._running for process in instance.processes()]

    def _gpus(self) -> set[int]:
        return {instance.device.id for instance in self._running if instance.device.kind == "gpu"}
