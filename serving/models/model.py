"""One loaded model version: its configuration, scheduler, instances and statistics.

submit(request) -> check -> scheduler -> instance thread -> _batch_done -> request.respond

A request that was admitted is this model's until it ends: `InFlightRequest.respond` gives it back, by whomever and however it
is answered. The callbacks here answer with an error whatever is raised in them.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Concatenate, ParamSpec

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.base.backend import Backend, ModelSpec
from serving.backends.table import make_backend
from serving.core.batch import Batch
from serving.core.datatypes import Tensor
from serving.core.errors import Code, ServingError, internal, safely, unavailable, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.response import Answer, InferenceResponse
from serving.core.tensor_check import TensorCheck
from serving.execution.crash_trace import runner
from serving.execution.instance import Instance
from serving.execution.instance_groups import Placement, placements
from serving.execution.readiness import instances_ready
from serving.execution.warmup import warmup_batches
from serving.extensions.classification import Labels, inherited_labels, read_labels
from serving.extensions.tensor_parameters import apply_targets
from serving.resources.memory import NOTHING, MemoryUse, files_bytes, memory_use
from serving.resources.response_cache import ModelCache
from serving.resources.runtime import Runtime
from serving.scheduling.dynamic_batch import DynamicBatchScheduler
from serving.scheduling.ensemble import EnsembleScheduler
from serving.scheduling.instance_scheduler import InstanceScheduler
from serving.scheduling.sequence_batch import SequenceBatchScheduler
from serving.telemetry.statistics import ModelStatistics, Phases

log = logging.getLogger(__name__)

# A request with this parameter is answered with the time it spent in the queue and in its batch, beside the outputs.
TIMING = "slipway_timing"


P = ParamSpec("P")


def _answering(
    callback: "Callable[Concatenate[Model, InFlightRequest, P], None]",
) -> "Callable[Concatenate[Model, InFlightRequest, P], None]":
    """A callback for one request: what it raises is the request's answer."""

    @wraps(callback)
    def guarded(model: "Model", request: InFlightRequest, /, *arguments: P.args, **named: P.kwargs) -> None:
        try:
            callback(model, request, *arguments, **named)
        except Exception as error:
            model.broke(request, error)

    return guarded


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
        self._child_memory = runtime.child_memory
        self._held = NOTHING  # what it has grown by when it was loaded and when its instances changed
        self._backend: Backend | None = None
        self._instances: list[Instance] = []
        # Instances that are not wanted any more but for the sequences that they run; each waits for its future.
        self._leaving: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        self._cores_of = runtime.host_policies.get
        self._draining = False
        self._drained: asyncio.Future[None] | None = None
        self._in_flight = 0
        self._server_cache = runtime.cache
        self._cache = ModelCache.of(spec.config, runtime.cache)
        self._labels: Labels = {}
        self._step_labels: Callable[[str, int], Labels] | None = None
        self._take_config(spec.config)
        self.scheduler: EnsembleScheduler | InstanceScheduler
        if spec.config.platform == "ensemble":
            infer = partial(runtime.infer_step, statistics.namespace)
            if runtime.step_labels is not None:
                self._step_labels = partial(runtime.step_labels, statistics.namespace)
            self.scheduler = EnsembleScheduler(
                spec.config, spec.version, infer, self._answered, partial(self._streamed, final=False)
            )
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
        self.statistics.configure(config, self._cache is not None)

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
                loading = runner("loading", self.spec.name, self.spec.version, self.spec.model_file)
                await self._loop.run_in_executor(self._executor, loading, self._backend.load)
                await self._place_instances(self.config)
            self._held = memory_use(growth, floor, self._processes(), self._gpus())
        except ServingError:
            await self._free()
            raise
        except Exception as error:
            await self._free()
            raise unexpected(error, f"loading '{self.spec.name}'") from error

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
        if self._server_cache is not None:
            self._server_cache.models_changed()
        if self._in_flight:
            self._drained = self._loop.create_future()
            await self._drained
        if self._server_cache is not None:
            self._server_cache.models_changed()
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
            match = next((one for one in surplus if one.placement[1:] == place[1:]), None)
            if match is None:
                missing.append(place)
            else:
                surplus.remove(match)
        started = [self._make_instance(self._backend, self.scheduler, place) for place in missing]
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
            vacated = self.scheduler.vacated(instance)
            if vacated is None:
                await self._take_away(instance)
            else:
                leaving = self._loop.create_task(self._leave(instance, vacated))
                self._leaving[leaving] = vacated
                leaving.add_done_callback(self._leaving.pop)

    def _make_instance(self, backend: Backend, scheduler: InstanceScheduler, place: Placement) -> Instance:
        on_sent = self._streamed if self._decoupled else self._answer_late
        cores = self._cores_of(place.policy)
        return Instance(backend, place, self._loop, scheduler.batch_done, on_sent, self._decoupled, cores)

    async def _leave(self, instance: Instance, vacated: "asyncio.Future[None]") -> None:
        """The sequences that run on an instance end there, while others begin elsewhere."""
        await vacated
        await self._take_away(instance)

    async def _take_away(self, instance: Instance) -> None:
        """Free an instance that the scheduler has, when the batch that it runs is done."""
        assert isinstance(self.scheduler, InstanceScheduler)
        await self.scheduler.remove_instance(instance)
        await self._stop(instance)

    async def _stop(self, instance: Instance) -> None:
        if self._limiter is not None:
            self._limiter.unregister(instance)
        await instance.stop()

    async def _start(self, instance: Instance, config: ModelConfig) -> None:
        if self._limiter is not None:
            self._limiter.register(instance, instance.placement.demand)
        warmup = warmup_batches(config, self.spec)
        if isinstance(self.scheduler, SequenceBatchScheduler):
            self.scheduler.complete_warmup(warmup)
        await instance.start(warmup)

    async def _free(self) -> None:
        for vacated in self._leaving.values():
            if not vacated.done():
                vacated.set_result(None)
        instances, self._instances = self._instances, []
        await asyncio.gather(*self._leaving)
        await asyncio.gather(*(self._take_away(instance) for instance in instances))
        if self._backend is not None:
            backend, self._backend = self._backend, None
            await self._loop.run_in_executor(self._executor, backend.unload)

    def _processes(self) -> list[int]:
        return [process for instance in self._instances for process in instance.processes()]

    def _gpus(self) -> set[int]:
        return {instance.device.id for instance in self._instances if instance.device.kind == "gpu"}

    @property
    def memory(self) -> MemoryUse:
        """What it was measured to hold when it was loaded; what its own processes hold is read again and again."""
        processes = self._processes()
        return self._held._replace(host=self._child_memory.of(processes)) if processes else self._held

    @property
    def labels(self) -> Labels:
        """Of its label files; an output of an ensemble without one has those of the step that makes it."""
        if self._step_labels is None or not isinstance(self.scheduler, EnsembleScheduler):
            return self._labels
        own = {name: labels for name, labels in self._labels.items() if labels}
        return inherited_labels(self.config, self._step_labels) | own

    @property
    def pending(self) -> int:
        """Requests accepted and not yet handed to an instance."""
        return self.scheduler.pending

    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet answered."""
        return self._in_flight

    @property
    def available(self) -> bool:
        """Whether any of its instances would answer now."""
        return not self._instances or any(instance.available() for instance in self._instances)

    def unready_reasons(self) -> list[str]:
        """Return why instances of it would not answer now."""
        return [complaint for instance in self._instances if (complaint := instance.complaint())]

    async def confirm_ready(self) -> bool:
        """Ask the instances whether they would answer."""
        return await instances_ready(self._instances)

    # -- requests --------------------------------------------------------------------------------------------------
    def submit(self, request: InFlightRequest) -> None:
        """Check and queue; raises ServingError (then the request is not answered)."""
        if self._draining:
            raise unavailable(f"model '{self.spec.name}' is being unloaded")
        try:
            self._check.request(request)
            request.accept(self, time.monotonic_ns(), self._decoupled)
            self._in_flight += 1
            self.statistics.revision += 1
            if self._cache is not None and self._answered_by_cache(self._cache, request):
                return
            self.scheduler.submit(request)
        except ServingError as error:
            self._refuse(request, error)
            raise
        except Exception as error:
            failure = unexpected(error, f"taking a request for '{self.spec.name}'")
            safely("taking a request back", self.scheduler.remove, request)
            if not request.finished:
                self._refuse(request, failure)
                raise failure from None

    def _refuse(self, request: InFlightRequest, error: ServingError) -> None:
        if request.give_back():
            self.request_ended(request)
        self._count_refusal(request, error)

    def request_ended(self, request: InFlightRequest) -> None:
        """The request has its final answer, or none is owed to it: it is not this model's any more."""
        self._in_flight -= 1
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)
        if self._cache is not None:
            safely("forgetting a request in the response cache", self._cache.forget, request)

    def request_cancelled(self, request: InFlightRequest) -> None:
        """Nobody waits for the request any more."""
        began = time.monotonic_ns()
        self.scheduler.remove(request)
        self.statistics.count_cancel(request)
        if request.stream is not None and request.stream.from_ns:
            self.statistics.responses_of(request).cancel.add(time.monotonic_ns() - began)

    @_answering
    def _rejected(self, request: InFlightRequest, error: ServingError) -> None:
        self._count_refusal(request, error)
        request.respond(error)

    def _count_refusal(self, request: InFlightRequest, error: ServingError) -> None:
        reason = "REJECTED" if error.code is Code.UNAVAILABLE else "OTHER"
        safely("counting a refusal", self.statistics.count_failure, request, reason)

    def broke(self, request: InFlightRequest, error: Exception) -> None:
        """Something was raised on the way to a request's answer: that is its answer now, if it has none yet."""
        failure = unexpected(error, f"answering a request of '{self.spec.name}'")
        if not request.finished:
            safely("dropping a request", self.scheduler.remove, request)
            safely("counting a failure", self.statistics.count_failure, request, "OTHER")
            request.respond(failure)

    def _answered_by_cache(self, cache: ModelCache, request: InFlightRequest) -> bool:
        start = time.monotonic_ns()
        outputs, took = safely("looking up a request in the response cache", cache.look_up, request) or (None, 0)
        if outputs is None:
            return False
        self.statistics.count_hit(start - request.queued_ns, took)
        self._loop.call_soon(self._cache_hit, request, outputs)
        return True

    @_answering
    def _cache_hit(self, request: InFlightRequest, outputs: dict[str, Tensor]) -> None:
        if request.finished:
            return
        response = InferenceResponse(self.spec.name, self.spec.version, request.asked.id, outputs)
        answer = self._outward(request, response)
        self.statistics.count_success(request, time.monotonic_ns())
        request.respond(answer)

    # -- answers ---------------------------------------------------------------------------------------------------
    @_answering
    def _answered(self, request: InFlightRequest, answer: Answer, steps: Phases) -> None:
        """An ensemble is done, with its last response or behind it; its steps took so long."""
        if isinstance(answer, ServingError):
            self.statistics.count_failure(request, "CANCELED" if answer.code is Code.CANCELLED else "OTHER")
            request.respond(answer)
            return
        self.statistics.count_execution(request.batch_size, steps)
        self.statistics.count_computed(1, request.batch_size, steps)
        self.statistics.count_queued(0)
        if answer is None or request.stream is not None:
            self._streamed(request, answer, final=True)
            return
        self._keep(request, answer.outputs)
        outward = self._outward(request, answer)
        self.statistics.count_success(request, time.monotonic_ns())
        request.respond(outward)

    @_answering
    def _streamed(self, request: InFlightRequest, response: Answer, final: bool) -> None:
        """A decoupled model sent a response."""
        flow, stream = request.responder.flow, request.stream
        if request.finished:
            if isinstance(response, InferenceResponse) and flow is not None:
                flow.taken(response.size)
            return
        computed_ns = time.monotonic_ns()
        counted = self.statistics.responses_of(request)
        if response is not None:
            self.statistics.count_first_response(request, computed_ns)
            if stream is not None:
                stream.responses += 1
        answer = None if response is None else self._outward(request, response)
        if final and isinstance(response, ServingError):
            self.statistics.count_failure(request, "BACKEND")
        elif final:
            self.statistics.count_success(request, computed_ns)
        if answer is not response and isinstance(response, InferenceResponse) and flow is not None:
            flow.taken(response.size)  # it became an error
        request.respond(answer, final)
        now = time.monotonic_ns()
        began_ns = (stream.from_ns if stream is not None else 0) or request.queued_ns
        counted.count(answer, computed_ns - began_ns, now - computed_ns)
        if stream is not None:
            stream.from_ns = now

    @_answering
    def _answer_late(self, request: InFlightRequest, answer: Answer, _: bool) -> None:
        """Another model sent its one response after the batch."""
        if request.finished or answer is None:
            return
        if isinstance(answer, ServingError):
            self.statistics.count_failure(request, "BACKEND")
            request.respond(answer)
            return
        self._keep(request, answer.outputs)
        outward = self._outward(request, answer)
        self.statistics.count_success(request, time.monotonic_ns())
        request.respond(outward)

    def _batch_done(self, batch: Batch) -> None:
        """A batch has run: answer its requests, each whatever becomes of the others."""
        phases = None
        answered = rows = 0
        try:
            phases = self.statistics.count_batch(batch)
        except Exception as error:
            unexpected(error, "counting a batch")
        for request, answer in zip(batch.requests, batch.responses, strict=True):
            try:
                if self._executed(batch, request, answer):
                    answered, rows = answered + 1, rows + request.batch_size
            except Exception as error:
                self.broke(request, error)
        if phases is not None:
            try:
                self.statistics.count_computed(answered, rows, phases)
            except Exception as error:
                unexpected(error, "counting a batch")

    def _executed(self, batch: Batch, request: InFlightRequest, answer: Answer) -> bool:
        """Answer one request of a batch, unless it is answered otherwise; whether it counts as computed."""
        if request.stream is not None:
            request.stream.executing = False
        for observer in request.observers:
            safely("observing an execution", observer.executed, request, batch)
        if request in batch.rescheduled:
            return False
        waited = batch.started_ns - request.queued_ns
        if answer is None and (self._decoupled or request in batch.later):
            if not request.cancelled:  # its responses may have come already, or come later
                self.statistics.count_queued(waited)
            return not request.cancelled
        if request.finished:  # cancelled while it ran, or a stand-in
            return False
        if answer is None:
            answer = internal("the backend gave no response for this request")
        if isinstance(answer, ServingError):
            self.statistics.count_failure(request, "BACKEND")
            request.respond(answer)
            return False
        self._keep(request, answer.outputs)
        if request.asked.parameters and request.asked.parameters.get(TIMING):
            answer.parameters |= batch.timing(waited)
        outward = self._outward(request, answer)
        self.statistics.count_queued(waited)
        self.statistics.count_success(request, batch.ended_ns)
        request.respond(outward)
        return True

    def _outward(
        self, request: InFlightRequest, answer: InferenceResponse | ServingError
    ) -> InferenceResponse | ServingError:
        """The answer as the client asked for it: shapes of the protocol, classes, outputs in shared memory."""
        answer = self._check.response(answer)
        targets = request.asked.output_targets
        if targets and isinstance(answer, InferenceResponse):
            return apply_targets(answer, targets, self.labels, self.config.max_batch_size > 0)
        return answer

    def _keep(self, request: InFlightRequest, outputs: dict[str, Tensor]) -> None:
        if self._cache is None:
            return
        took = safely("keeping an answer in the response cache", self._cache.keep, request, outputs)
        if took:
            self.statistics.count_miss(took)
