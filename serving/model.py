"""One loaded model version: its configuration, scheduler, instances and statistics.

submit(request) -> check -> scheduler -> instance thread -> _batch_done -> request.respond
"""

import asyncio
import logging
import time

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends import make_backend
from serving.backends.base import Backend, ModelSpec
from serving.batch import Batch
from serving.classification import read_labels
from serving.errors import Code, ServingError, internal, unavailable
from serving.first_response import first_responses
from serving.instance import Instance
from serving.instance_groups import Placement, placements
from serving.memory import NOTHING, MemoryUse, files_bytes, memory_use, private_bytes
from serving.output_target import deliver
from serving.request import InferenceRequest, InferenceResponse, Parameters, Tensor
from serving.response_cache import ModelCache
from serving.runtime import Runtime
from serving.schedulers.dynamic_batch import DynamicBatchScheduler
from serving.schedulers.ensemble import EnsembleScheduler
from serving.schedulers.instance_scheduler import InstanceScheduler
from serving.schedulers.sequence_batch import SequenceBatchScheduler
from serving.statistics import BatchStatistics, ModelStatistics
from serving.tensor_check import TensorCheck
from serving.warmup import warmup_batches

log = logging.getLogger(__name__)

# A request with this parameter is answered with the time it spent in the queue and in its batch, beside the outputs.
TIMING = "slipway_timing"


class Model:
    """READY between `load` and `drain`. All methods run on the event loop's thread."""

    def __init__(
        self,
        spec: ModelSpec,
        statistics: ModelStatistics,
        runtime: Runtime,
    ) -> None:
        self.spec = spec
        self.statistics = statistics
        self.warnings: list[str] = []
        self._loop = loop = runtime.loop
        self._executor = runtime.executor
        self._limiter = runtime.limiter
        self._meter = runtime.meter
        self._held = NOTHING  # what it has grown by when it was loaded and when its instances changed
        self._backend: Backend | None = None
        self._instances: list[Instance] = []
        self._draining = False
        self._drained: asyncio.Future[None] | None = None
        self._in_flight = 0
        caches = runtime.cache is not None and spec.config.response_cache.enable
        self._cache = ModelCache(runtime.cache) if runtime.cache is not None and caches else None
        self._cache_keys: dict[InferenceRequest, bytes] = {}  # of requests under way that the cache did not have
        self._labels: dict[str, list[str]] = {}
        self._take_config(spec.config)
        self.scheduler: EnsembleScheduler | InstanceScheduler
        if spec.config.platform == "ensemble":
            self.scheduler = EnsembleScheduler(spec.config, spec.version, runtime.infer, self._answered)
        elif spec.config.HasField("sequence_batching"):
            model_dir = spec.version_dir.parent
            self.scheduler = SequenceBatchScheduler(spec.config, model_dir, loop, self._rejected, self._batch_done)
        else:
            self.scheduler = DynamicBatchScheduler(spec.config, loop, self._rejected, self._batch_done)
        if isinstance(self.scheduler, InstanceScheduler):
            self.scheduler.limiter = runtime.limiter

    def _take_config(self, config: ModelConfig) -> None:
        self.config = config
        self._check = TensorCheck(config)
        self._decoupled = config.model_transaction_policy.decoupled
        self.statistics.first_response = first_responses(config, self.statistics.first_response)

    # -- life ------------------------------------------------------------------------------------------------------
    async def load(self) -> None:
        """Read the weights, start and warm every instance; raises ServingError and leaves nothing behind."""
        self._labels = read_labels(self.spec.config, self.spec.version_dir.parent)
        if isinstance(self.scheduler, EnsembleScheduler):
            return
        try:
            self._backend = make_backend(self.spec)
            floor = await self._loop.run_in_executor(self._executor, files_bytes, self.spec.version_dir)
            with self._meter.measure() as growth:
                await self._loop.run_in_executor(self._executor, self._backend.load)
                await self._place_instances(self.config)
            self._held = memory_use(growth, floor, self._processes(), self._gpus())
        except ServingError:
            await self._free()
            raise
        except Exception as error:
            log.exception("loading %s failed", self.spec.name)
            await self._free()
            raise internal(f"{type(error).__name__}: {error}") from error

    async def reconfigure(self, config: ModelConfig) -> None:
        """Apply a configuration that differs in batching, instances or slipway.* only; what is queued stays queued."""
        if self._backend is not None:
            with self._meter.measure() as growth:
                await self._place_instances(config)
            if growth.alone:
                grown = memory_use(growth, 0, (), self._gpus())
                self._held = (self._held + grown)._replace(basis=self._held.basis)
        self._take_config(config)
        self.scheduler.configure(config)

    async def drain(self) -> None:
        """Take no more requests, finish those accepted, free everything."""
        self._draining = True
        if self._in_flight:
            self._drained = self._loop.create_future()
            await self._drained
        await self._free()

    async def _place_instances(self, config: ModelConfig) -> None:
        """Bring the instances to what the configuration's groups ask for: start new ones first, then let others go."""
        assert isinstance(self.scheduler, InstanceScheduler)
        assert self._backend is not None
        wanted, self.warnings = placements(config, type(self._backend), self.spec.strict_devices)
        for warning in self.warnings:
            log.warning("model '%s': %s", self.spec.name, warning)
        surplus = list(self._instances)
        missing: list[Placement] = []
        for place in wanted:
            match = next((one for one in surplus if one.place[1:] == place[1:]), None)
            if match is None:
                missing.append(place)
            else:
                surplus.remove(match)
        started = [Instance(self._backend, place, self._loop) for place in missing]
        results = await asyncio.gather(*(self._start(one, config) for one in started), return_exceptions=True)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            await asyncio.gather(*(self._stop(instance) for instance in started))
            raise failure
        for instance in started:
            self._instances.append(instance)
            self.scheduler.add_instance(instance)
        for instance in surplus:
            self._instances.remove(instance)
            await self.scheduler.remove_instance(instance)
            await self._stop(instance)

    async def _stop(self, instance: Instance) -> None:
        if self._limiter is not None:
            self._limiter.unregister(instance)
        await instance.stop()

    async def _start(self, instance: Instance, config: ModelConfig) -> None:
        if self._limiter is not None:
            self._limiter.register(instance, instance.place.demand)
        instance.on_streamed = self._streamed
        await instance.start(warmup_batches(config, self.spec))

    async def _free(self) -> None:
        instances, self._instances = self._instances, []
        await asyncio.gather(*(self._stop(instance) for instance in instances))
        if self._backend is not None:
            backend, self._backend = self._backend, None
            await self._loop.run_in_executor(self._executor, backend.unload)

    def _processes(self) -> list[int]:
        return [process for instance in self._instances for process in instance.processes()]

    def _gpus(self) -> set[int]:
        return {instance.device.id for instance in self._instances if instance.device.kind == "gpu"}

    @property
    def memory(self) -> MemoryUse:
        """What it was measured to hold when it was loaded; what its own processes hold is read now."""
        processes = self._processes()
        return self._held._replace(host=sum(map(private_bytes, processes))) if processes else self._held

    @property
    def pending(self) -> int:
        """Requests accepted and not yet handed to an instance."""
        return self.scheduler.pending

    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet answered."""
        return self._in_flight

    # -- requests --------------------------------------------------------------------------------------------------
    def submit(self, request: InferenceRequest) -> None:
        """Check and queue; raises ServingError (then `on_response` is never called)."""
        if self._draining:
            raise unavailable(f"model '{self.spec.name}' is being unloaded")
        try:
            self._check.request(request)
            request.queued_ns = time.monotonic_ns()
            request.decoupled = self._decoupled
            self._admit(request)
            if self._cache is not None and self._answered_by_cache(self._cache, request):
                return
            try:
                self.scheduler.submit(request)
            except ServingError:
                self._release(request)
                raise
        except ServingError as error:
            self._count_failure(request, "REJECTED" if error.code is Code.UNAVAILABLE else "OTHER")
            raise

    def _admit(self, request: InferenceRequest) -> None:
        request.on_cancel = self._cancelled
        self._in_flight += 1
        self.statistics.revision += 1

    def _release(self, request: InferenceRequest) -> None:
        """The request has its final answer, or none is owed to it."""
        request.on_cancel = None
        self._in_flight -= 1
        if self._cache is not None:
            self._cache_keys.pop(request, None)
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)

    def _cancelled(self, request: InferenceRequest) -> None:
        self.scheduler.remove(request)
        self._finish_failed(request, "CANCELED")
        self.statistics.cancel.count += 1
        self.statistics.cancel.ns += time.monotonic_ns() - request.arrival_ns

    def _rejected(self, request: InferenceRequest, error: ServingError) -> None:
        self._finish_failed(request, "REJECTED")
        request.respond(error)

    def _finish_failed(self, request: InferenceRequest, reason: str) -> None:
        self._count_failure(request, reason)
        self._release(request)

    def _count_failure(self, request: InferenceRequest, reason: str) -> None:
        statistics = self.statistics
        statistics.fail.count += 1
        statistics.fail.ns += time.monotonic_ns() - request.arrival_ns
        statistics.failures[reason] = statistics.failures.get(reason, 0) + 1
        statistics.revision += 1

    def _answered_by_cache(self, cache: ModelCache, request: InferenceRequest) -> bool:
        start = time.monotonic_ns()
        key = cache.key(request)
        outputs = cache.get(key)
        took = time.monotonic_ns() - start
        looked = self.statistics.cache_miss if outputs is None else self.statistics.cache_hit
        looked.count += 1
        looked.ns += took
        cache.spent(lookup_ns=took)
        if outputs is None:
            self._cache_keys[request] = key
            return False
        self._loop.call_soon(self._cache_hit, request, outputs)
        return True

    def _cache_hit(self, request: InferenceRequest, outputs: dict[str, Tensor]) -> None:
        if request.finished:
            return
        self._count_success(request, time.monotonic_ns())
        self._release(request)
        request.respond(
            self._outward(request, InferenceResponse(self.spec.name, self.spec.version, request.id, outputs))
        )

    # -- answers ---------------------------------------------------------------------------------------------------
    def _answered(self, request: InferenceRequest, answer: InferenceResponse | ServingError) -> None:
        """An ensemble is done."""
        now = time.monotonic_ns()
        if isinstance(answer, ServingError):
            self._finish_failed(request, "CANCELED" if answer.code is Code.CANCELLED else "BACKEND")
        else:
            self._count_success(request, now)
            self.statistics.inference_count += request.batch_size
            self.statistics.execution_count += 1
            self.statistics.last_inference_ms = time.time_ns() // 1_000_000
            self._release(request)
        request.respond(self._outward(request, answer))

    def _streamed(
        self, request: InferenceRequest, response: InferenceResponse | ServingError | None, final: bool
    ) -> None:
        """A decoupled model sent a response."""
        if request.finished:
            if isinstance(response, InferenceResponse) and request.flow is not None:
                request.flow.taken(response.size)
            return
        if response is not None:
            if not request.responses and self.statistics.first_response is not None:
                self.statistics.first_response.add(time.monotonic_ns() - request.arrival_ns)
            request.responses += 1
        if final:
            if isinstance(response, ServingError):
                self._finish_failed(request, "BACKEND")
            else:
                self._count_success(request, time.monotonic_ns())
                self._release(request)
        if response is None:
            request.respond(None, final)
            return
        answer = self._outward(request, response)
        if answer is not response and isinstance(response, InferenceResponse) and request.flow is not None:
            request.flow.taken(response.size)  # it became an error
        request.respond(answer, final)

    def _batch_done(self, batch: Batch) -> None:
        self._count_batch(batch)
        queue, queue_latency = self.statistics.queue, self.statistics.queue_latency
        for request, answer in zip(batch.requests, batch.responses, strict=True):
            for observer in request.observers:
                observer.executed(request, batch)
            if request.finished or request in batch.rescheduled:  # cancelled while it ran, or comes again
                continue
            if answer is None:
                if self._decoupled:
                    continue
                answer = internal("the backend gave no response for this request")
            waited = batch.started_ns - request.queued_ns
            queue.count += 1
            queue.ns += waited
            queue_latency.add(waited)
            if isinstance(answer, ServingError):
                self._finish_failed(request, "BACKEND")
            else:
                if self._cache is not None:
                    self._keep(self._cache, request, answer.outputs)
                if request.parameters and request.parameters.get(TIMING):
                    answer.parameters |= _timing(waited, batch)
                self._count_success(request, batch.ended_ns)
                self._release(request)
            request.respond(self._outward(request, answer))

    def _outward(
        self, request: InferenceRequest, answer: InferenceResponse | ServingError
    ) -> InferenceResponse | ServingError:
        """The answer as the client asked for it: shapes of the protocol, classes, outputs in shared memory."""
        answer = self._check.response(answer)
        if request.targets and isinstance(answer, InferenceResponse):
            return deliver(answer, request.targets, self._labels, self.config.max_batch_size > 0)
        return answer

    def _keep(self, cache: ModelCache, request: InferenceRequest, outputs: dict[str, Tensor]) -> None:
        start = time.monotonic_ns()
        cache.put(self._cache_keys[request], outputs)
        took = time.monotonic_ns() - start
        self.statistics.cache_miss.ns += took
        cache.spent(insertion_ns=took)

    def _count_success(self, request: InferenceRequest, now: int) -> None:
        statistics = self.statistics
        took = now - request.arrival_ns
        statistics.success.count += 1
        statistics.success.ns += took
        statistics.request_latency.add(took)
        statistics.revision += 1

    def _count_batch(self, batch: Batch) -> None:
        """Compute times count once for each request, as in Triton, and once for each batch in `batches`."""
        statistics = self.statistics
        requests = len(batch.requests) - batch.padding
        input_ns = batch.input_done_ns - batch.started_ns if batch.input_done_ns else 0
        infer_from = batch.input_done_ns or batch.started_ns
        infer_to = batch.infer_done_ns or batch.ended_ns
        output_ns = batch.ended_ns - infer_to
        for duration, ns in (
            (statistics.compute_input, input_ns),
            (statistics.compute_infer, infer_to - infer_from),
            (statistics.compute_output, output_ns),
        ):
            duration.count += requests
            duration.ns += ns * requests
        rows = statistics.batches.get(batch.size)
        if rows is None:
            rows = statistics.batches[batch.size] = BatchStatistics()
        rows.count += 1
        rows.compute_input_ns += input_ns
        rows.compute_infer_ns += infer_to - infer_from
        rows.compute_output_ns += output_ns
        statistics.compute_latency.add(batch.ended_ns - batch.started_ns)
        statistics.inference_count += batch.size - batch.padding
        statistics.execution_count += 1
        statistics.last_inference_ms = time.time_ns() // 1_000_000
        statistics.revision += 1


def _timing(waited_ns: int, batch: Batch) -> Parameters:
    return {"slipway_queue_us": waited_ns // 1000, "slipway_compute_us": (batch.ended_ns - batch.started_ns) // 1000}
