"""One loaded model version: its configuration, scheduler, instances and statistics.

submit(request) -> check -> scheduler -> instance -> ModelResponses.batch_done -> request.respond

A model counts an accepted request as in flight until `InFlightRequest.respond` gives it back, whichever component answers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.base.backend import ModelSpec
from serving.core.errors import ServingError, safely, unavailable, unexpected
from serving.core.in_flight import InFlightRequest, ResponseStream
from serving.core.tensor_check import TensorCheck
from serving.execution.instance import Instance
from serving.execution.readiness import instances_ready
from serving.extensions.classification import Labels, inherited_labels, read_labels
from serving.models.load_report import LoadProgress
from serving.models.model_instances import ModelInstances
from serving.models.model_responses import ModelResponses
from serving.resources.memory import NOTHING, MemoryUse
from serving.resources.response_cache import ModelCache
from serving.resources.runtime import Runtime
from serving.scheduling.dynamic_batch import DynamicBatchScheduler
from serving.scheduling.ensemble import EnsembleScheduler
from serving.scheduling.instance_scheduler import InstanceScheduler
from serving.scheduling.sequence_batch import SequenceBatchScheduler
from serving.telemetry.statistics import ModelStatistics


class Model:
    """A model takes the requests of clients from `enter_service` until `drain`. Before `enter_service` it is a candidate. All
    methods run on the event loop's thread."""

    def __init__(self, spec: ModelSpec, statistics: ModelStatistics, runtime: Runtime) -> None:
        """statistics: counts the requests of the model while it is a candidate."""
        self.spec = spec
        self._statistics = statistics
        self.config = spec.config
        self._loop = runtime.loop
        self._draining = False
        self._sequences_left: asyncio.Future[None] | None = None  # done when the open sequences have ended
        self._sequences_abandoned = False
        self._drained: asyncio.Future[None] | None = None
        self._in_flight = 0
        self._loop_time = runtime.loop_time
        self._server_cache = runtime.cache
        self._cache: ModelCache | None = None  # None for a candidate, which neither reads nor fills the cache
        self._load_s = 0.0
        self._labels: Labels = {}
        self._step_labels: Callable[[str, int], Labels] | None = None
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._check = TensorCheck(spec.config)
        self._responses = responses = ModelResponses(spec, statistics, self._check, lambda: self.labels, self._withdraw)
        statistics.configure(spec.config, False)
        self._instances: ModelInstances | None = None  # an ensemble has none
        self.scheduler: EnsembleScheduler | InstanceScheduler
        if spec.config.platform == "ensemble":
            infer = partial(runtime.infer_step, statistics.namespace)
            if runtime.step_labels is not None:
                self._step_labels = partial(runtime.step_labels, statistics.namespace)
            streamed = partial(responses.streamed, final=False)
            self.scheduler = EnsembleScheduler(spec.config, spec.version, infer, responses.ensemble_answered, streamed)
            return
        model_dir, loop = spec.version_dir.parent, runtime.loop
        context = (loop, runtime.limiter, responses.rejected, responses.batch_done)
        if spec.config.HasField("sequence_batching"):
            self.scheduler = SequenceBatchScheduler(spec.config, model_dir, *context)
        else:
            self.scheduler = DynamicBatchScheduler(spec.config, *context)
        on_sent = responses.streamed if self._decoupled else responses.answered_late
        self._instances = ModelInstances(spec, runtime, self.scheduler, on_sent)

    # -- life ------------------------------------------------------------------------------------------------------
    async def load(self) -> None:
        """Read the weights and create every instance. On failure, free everything and raise a ServingError."""
        began = self._loop.time()
        self._labels = read_labels(self.spec.config, self.spec.version_dir.parent)
        if self._instances is not None:
            await self._instances.load(self.config)
        self._load_s = self._loop.time() - began

    async def warm_up(self, progress: LoadProgress | None = None) -> None:
        """Run the warm-up requests on every instance, once after `load`. On failure, free everything and raise ServingError."""
        began = self._loop.time()
        if self._instances is not None:
            await self._instances.warm_up(self.config, progress)
        self._load_s += self._loop.time() - began

    def enter_service(self, statistics: ModelStatistics) -> None:
        """Take the requests of clients from now on: count them in these statistics, and use the response cache."""
        self._cache = ModelCache.of(self.config, self._server_cache)
        self._statistics = statistics
        self._responses.enter_service(statistics, self._cache)
        statistics.load_s = self._load_s
        statistics.split([instance.label for instance in self.instances])
        statistics.configure(self.config, self._cache is not None)

    async def reconfigure(self, config: ModelConfig) -> None:
        """Apply a configuration that differs only in batching, instances or slipway.*. Requests in the queue stay there."""
        if self._instances is not None:
            await self._instances.reconfigure(config)
        self.config = config
        self._labels = read_labels(config, self.spec.version_dir.parent)
        self._check = TensorCheck(config)
        self._responses.reconfigure(self._check)
        self._statistics.configure(config, self._cache is not None)
        self._statistics.split([instance.label for instance in self.instances])
        self.scheduler.configure(config)

    async def drain(self) -> None:
        """Accept only requests of open sequences. Free everything once these have ended and all requests are answered."""
        self._draining = True
        if self._server_cache is not None:
            self._server_cache.models_changed()
        self._sequences_left = None if self._sequences_abandoned else self.scheduler.sequences_ended()
        if self._sequences_left is not None:
            await self._sequences_left
        if self._in_flight:
            self._drained = self._loop.create_future()
            await self._drained
        if self._server_cache is not None:
            self._server_cache.models_changed()
        if self._instances is not None:
            await self._instances.free()

    def abandon_sequences(self) -> None:
        """Make the current or a later `drain` not wait for open sequences, because no more of their requests will come."""
        self._sequences_abandoned = True
        if self._sequences_left is not None and not self._sequences_left.done():
            self._sequences_left.set_result(None)

    # -- state -----------------------------------------------------------------------------------------------------
    @property
    def instances(self) -> Sequence[Instance]:
        return self._instances.running if self._instances is not None else ()

    @property
    def statistics(self) -> ModelStatistics:
        """Return the statistics, with the counters of all batches added up."""
        self._statistics.add_up_executions()
        return self._statistics

    @property
    def warnings(self) -> list[str]:
        """Return warnings about the instances, such as a fallback to the CPU."""
        return self._instances.warnings if self._instances is not None else []

    @property
    def memory(self) -> MemoryUse:
        return self._instances.memory if self._instances is not None else NOTHING

    @property
    def held(self) -> MemoryUse:
        """Return the memory that budgets count for the model."""
        return self._instances.held if self._instances is not None else NOTHING

    @property
    def grown(self) -> MemoryUse:
        """Return the growth of the server's memory during the load: a share by size if other loads ran as well."""
        return self._instances.grown if self._instances is not None else NOTHING

    @property
    def labels(self) -> Labels:
        """Return the labels from the label files. An output of an ensemble without a label file has the labels of the step that
        produces the output."""
        if self._step_labels is None:
            return self._labels
        own = {name: labels for name, labels in self._labels.items() if labels}
        return inherited_labels(self.config, self._step_labels) | own

    @property
    def pending(self) -> int:
        """Return how many requests are accepted and not yet handed to an instance."""
        return self.scheduler.pending

    @property
    def needs_eviction(self) -> bool:
        """Return False: no model would have to be evicted to load this one, because its weights are loaded."""
        return False

    @property
    def in_flight(self) -> int:
        """Return how many requests are accepted and not yet answered."""
        return self._in_flight

    @property
    def available(self) -> bool:
        """Return whether any instance would answer now, or True for a model without instances."""
        return not self.instances or any(instance.available() for instance in self.instances)

    def sequence_start_ns(self, identifier: int | str) -> int:
        """Return when an open sequence began, in monotonic ns; 0 if this model has no such sequence open."""
        return self.scheduler.sequence_start_ns(identifier)

    def unready_reasons(self) -> list[str]:
        """Return the reasons why instances would not answer now."""
        return [reason for instance in self.instances if (reason := instance.unready_reason())]

    async def confirm_ready(self) -> bool:
        """Return whether the instances report that they are ready."""
        return await instances_ready(self.instances)

    # -- requests --------------------------------------------------------------------------------------------------
    def submit(self, request: InFlightRequest) -> None:
        """Check and queue a request. If that fails, raise the ServingError that the caller must answer the request with."""
        if self._draining and not self._proceeds(request):
            raise unavailable(f"model '{self.spec.name}' is being unloaded")
        try:
            self._check.request(request)
            request.accept(self, time.monotonic_ns())
            if self._decoupled:
                request.stream = ResponseStream(0)
            self._in_flight += 1
            self._loop_time.in_flight += 1
            self._statistics.revision += 1
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
                try:
                    raise failure from None
                finally:
                    del failure  # the error refers to this frame, which would keep the request in memory

    def _proceeds(self, request: InFlightRequest) -> bool:
        """Return whether a request to a draining model belongs to a sequence that is open."""
        sequence, left = request.sequence, self._sequences_left
        if left is None or left.done() or not sequence.id or sequence.start:
            return False
        return self.scheduler.sequence_start_ns(sequence.id) > 0

    def take_back(self, wanted: Callable[[InFlightRequest], bool]) -> list[InFlightRequest]:
        """Remove and return the queued requests for which `wanted` is true. Requests of sequences stay."""
        scheduler = self.scheduler
        if self.config.HasField("sequence_batching"):
            return []
        taken = [request for request in scheduler.waiting() if wanted(request) and scheduler.remove(request)]
        for request in taken:
            request.reset()
            self.request_ended(request)
        return taken

    def _refuse(self, request: InFlightRequest, error: ServingError) -> None:
        if request.give_back():
            self.request_ended(request)
        self._responses.count_refusal(request, error)

    def request_ended(self, request: InFlightRequest) -> None:
        """Forget a request that has its final answer, or that this model will not answer."""
        self._in_flight -= 1
        self._loop_time.in_flight -= 1
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)
        if self._cache is not None:
            safely("forgetting a request in the response cache", self._cache.forget, request)

    def request_cancelled(self, request: InFlightRequest) -> None:
        """Remove a request that its client has cancelled."""
        began = time.monotonic_ns()
        self.scheduler.remove(request)
        self._statistics.count_cancel(request)
        if request.stream is not None and request.stream.from_ns:
            self._statistics.responses_of(request).cancel.add(time.monotonic_ns() - began)

    def _answered_by_cache(self, cache: ModelCache, request: InFlightRequest) -> bool:
        start = time.monotonic_ns()
        outputs, took = safely("looking up a request in the response cache", cache.look_up, request) or (None, 0)
        if outputs is None:
            return False
        self._statistics.count_hit(start - request.queued_ns, took)
        self._loop.call_soon(self._responses.cache_hit, request, outputs)
        return True

    def _withdraw(self, request: InFlightRequest) -> None:
        self.scheduler.remove(request)
