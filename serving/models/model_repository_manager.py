"""All models of one server behind one object: it loads and unloads them, and chooses the model for a request."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from serving.cli.options import Options
from serving.core.devices import Device
from serving.core.errors import Code, NotYet, ServingError
from serving.core.in_flight import InFlightRequest
from serving.extensions.classification import Labels
from serving.models.memory_map import memory_map
from serving.models.model import Model
from serving.models.model_lifecycle import Destination
from serving.models.model_loader import ModelLoader
from serving.models.model_registry import ModelRegistry
from serving.models.repository_index import RepositoryIndex
from serving.models.repository_poller import RepositoryPoller
from serving.models.residency import ResidencyManager
from serving.models.sleeping_model import SleepingModel
from serving.repositories.model_repositories import ModelRepositories
from serving.repositories.wanted_models import WantedModels
from serving.resources.custom_metrics import CustomMetrics
from serving.resources.host_policy import host_policies
from serving.resources.memory import READ_EACH_S
from serving.resources.network_thread import NetworkThreads
from serving.resources.process_memory import Reading, read_memory
from serving.resources.rate_limiter import RateLimiter
from serving.resources.request_memory import RequestMemory
from serving.resources.response_cache import ResponseCache
from serving.resources.runtime import ModelControl, Runtime
from serving.resources.sampling import Sample
from serving.traffic.rollout import Rollout
from serving.traffic.rollouts import Rollouts

DRAIN_INTERVAL_S = 0.005


class ModelProcess(NamedTuple):
    """A process of a model's instance. `memory`: the bytes that it holds. `ready`: whether it takes batches."""

    instance: str
    pid: int
    ready: bool
    memory: int
    device: Device


class ModelRepositoryManager:
    """Assembles the registry, the loader, the poller and the index of all repositories. Runs on the event loop's thread."""

    def __init__(
        self,
        options: Options,
        loop: asyncio.AbstractEventLoop,
        control: ModelControl | None = None,
        memory: Callable[[], RequestMemory] = RequestMemory,
    ) -> None:
        """memory: returns the server's RequestMemory, which also counts the requests that rollouts keep."""
        self._executor = ThreadPoolExecutor(options.model_load_thread_count, thread_name_prefix="load")
        self._repositories = ModelRepositories(options)
        self._models = ModelRegistry()
        self._by_name = self._models.by_name
        self._wanted_models = WantedModels(options.wanted_models_file) if options.wanted_models_file else None
        self.unserved: Counter[str] = Counter()  # requests to models that did not serve: no version counts them
        self.rollouts = Rollouts(options, loop, memory)
        self._residency = ResidencyManager(options.memory_budget, options.gpu_memory_budget)
        limited = options.rate_limit == "execution_count"
        self._runtime = Runtime(
            loop=loop,
            executor=self._executor,
            infer=self.infer,
            infer_step=self.infer_step,
            step_labels=self._step_labels,
            strict_devices=options.strict_devices,
            checks_memory=options.check_memory,
            heartbeat_timeout_s=options.process_heartbeat_timeout_secs,
            cache=ResponseCache(options.cache_size) if options.cache_size else None,
            control=control,
            limiter=RateLimiter(options.rate_limit_resource, loop.call_soon) if limited else None,
            host_policies=host_policies(options.host_policy),
            summaries=options.metric_enabled("summary_latencies"),
            first_responses=options.histogram_latencies,
        )
        network = NetworkThreads(loop, options.model_load_thread_count)
        shared = (options, self._runtime, self._repositories, network)
        self.loader = ModelLoader(*shared, self._models, self._residency, self.rollouts)
        self.poller = RepositoryPoller(*shared, self.loader)
        self.index = RepositoryIndex(self._models, self._repositories)
        self._memory_reading: Sample[Reading] | None = None  # made when somebody asks

    # -- requests --------------------------------------------------------------------------------------------------
    def infer(self, request: InFlightRequest) -> None:
        """Queue a request with its model."""
        asked = request.asked
        lifecycle = self._by_name.get(asked.model_name)
        if lifecycle is not None and not asked.model_version and lifecycle.default_destination is not None:
            lifecycle.default_destination.submit(request)
        else:
            self._destination(asked.model_name, asked.model_version).submit(request)

    def _destination(self, name: str, version: str) -> Destination:
        """Return where a request goes. Count the request if its model is known but does not serve."""
        try:
            lifecycle = self._by_name.get(name) or self._models.find(name)
            return lifecycle.destination(version)
        except ServingError as error:
            failure = self._not_yet(name, error)
            self._count_unserved(name, failure)
            try:
                raise failure from None
            finally:
                del failure  # it refers to this frame, which refers to the request

    def resolve_counted(self, name: str, version: str) -> Model | SleepingModel:
        """Return the model as `resolve` does, to read a request by its configuration. Count the request if no model serves."""
        try:
            return self.resolve(name, version)
        except ServingError as error:
            self._count_unserved(name, error)
            raise

    def _count_unserved(self, name: str, error: ServingError) -> None:
        if error.code == Code.UNAVAILABLE:  # counting unknown names would let clients add any number of counters
            self.unserved[name] += 1

    def infer_step(self, namespace: str, request: InFlightRequest) -> None:
        """Queue a request of an ensemble's step with its model. namespace: the namespace of the ensemble."""
        lifecycle = self._models.find_step(request.asked.model_name, namespace)
        lifecycle.destination(request.asked.model_version).submit(request)

    def resolve(self, name: str, version: str) -> Model | SleepingModel:
        """Return the model, awake or asleep, that a client means. Raises NOT_FOUND, UNAVAILABLE or INVALID_ARG."""
        try:
            lifecycle = self._by_name.get(name) or self._models.find(name)
            return lifecycle.resolve(version)
        except ServingError as error:
            raise self._not_yet(name, error) from None

    def _not_yet(self, name: str, error: ServingError) -> ServingError:
        """Return the error to raise if no version of a model serves, which is NotYet if the model is about to be loaded."""
        lifecycle = self._by_name.get(name)
        if self._wanted_models is None or (lifecycle and lifecycle.default) or name not in self._wanted_models:
            return error
        if lifecycle is None or not lifecycle.requested:
            return NotYet(f"model '{name}' is not loaded yet, but will be in a moment: try again")
        return NotYet(error.message)

    def _step_labels(self, namespace: str, name: str, version: int) -> Labels:
        try:
            return self._models.step_model(namespace, name, version).labels
        except ServingError:  # the model was unloaded after it had answered
            return {}

    # -- state -----------------------------------------------------------------------------------------------------
    def names(self) -> list[str]:
        """Return the names of all models of the repositories, sorted, each once."""
        return list(dict.fromkeys(model.name for model in self._repositories.models()))

    @property
    def all_listed(self) -> bool:
        """Return whether each repository has been readable at least once, so that all models to serve are known."""
        return self._repositories.all_listed

    def has(self, name: str) -> bool:
        """Return whether a model of that name is or was loaded, or is in a repository."""
        try:
            return self.knows(name) or bool(self._repositories.identifiers(name))
        except ServingError:  # the name is not valid, or two repositories have it
            return False

    def knows(self, name: str) -> bool:
        """Return whether a model of that name is or was loaded."""
        return bool(self._models.named(name))

    def ready_versions(self, name: str) -> list[int]:
        return self._models.find(name).ready_versions()

    def rollout(self, name: str) -> Rollout | None:
        """Return the rollout of a model, or None if it has none. Raises NOT_FOUND for an unknown model."""
        return self.rollouts.of(self._models.find(name).identifier)

    @property
    def has_remote(self) -> bool:
        """Return whether a repository is in the cloud."""
        return bool(self._repositories.remote)

    @property
    def listing_problems(self) -> dict[str, str]:
        """Return a dict of each repository -> why its last listing failed, or ""."""
        return self._repositories.problems

    @property
    def repositories_from_cache(self) -> dict[str, bool]:
        """Return a dict of each repository in the cloud -> whether its models are those of the cache."""
        return self._repositories.from_cache

    def missing_repositories(self) -> list[Path]:
        """Return the folders that were missing at the start and still are."""
        return self._repositories.missing

    @property
    def custom_metrics(self) -> CustomMetrics:
        return self._runtime.metrics

    @property
    def response_cache(self) -> ResponseCache | None:
        return self._runtime.cache

    def processes(self, name: str, version: str) -> list[ModelProcess]:
        """Return the child processes of a version's instances; [] if the version sleeps or runs in the server's process."""
        model = self.resolve(name, version)
        memory = self._runtime.child_memory
        return [
            ModelProcess(instance.name, pid, not instance.unready_reason(), memory.of([pid]), instance.device)
            for instance in (model.instances if isinstance(model, Model) else ())
            for pid in instance.processes()
        ]

    def downtimes_s(self, name: str, version: str) -> list[float]:
        """Return how many seconds the process of each instance of a version has been down; 0 for a running process."""
        model = self.resolve(name, version)
        return [instance.down_s() for instance in model.instances] if isinstance(model, Model) else []

    async def drained(self, name: str) -> None:
        """Wait until every retired version of a model is freed."""
        await asyncio.gather(*(lifecycle.drained() for lifecycle in self._models.named(name)))

    def forget(self, name: str) -> None:
        """Forget a model that is unloaded and no longer in the repository, as if it had never been loaded."""
        for lifecycle in self._models.named(name):
            if not lifecycle.requested and not lifecycle.lock.locked() and not lifecycle.busy():
                self._models.remove(lifecycle)
                self._residency.remove(lifecycle)

    async def memory_map(self) -> dict[str, object]:
        """Return the memory of each device and of the versions that hold it (memory_map.py). A reading may be a second old."""
        if self._memory_reading is None:
            self._memory_reading = await asyncio.to_thread(Sample, "memory of processes", read_memory, READ_EACH_S)
        await self._memory_reading.refreshed()
        return memory_map(self._models, self._residency, self._memory_reading.latest, self._runtime.meter.base)

    async def refresh_memory(self) -> None:
        """Wait until the memory of child processes has been measured again, or until that takes too long."""
        await self._runtime.child_memory.refreshed()

    # -- life ------------------------------------------------------------------------------------------------------
    async def shutdown(self) -> None:
        """Finish every request before any model is unloaded, because requests may still call other models (steps, Python
        models)."""
        self._residency.stop()
        try:
            while any(lifecycle.busy() for lifecycle in self._models) or self.rollouts.busy():
                await asyncio.sleep(DRAIN_INTERVAL_S)
            for lifecycle in self._models:
                lifecycle.unload()
            await asyncio.gather(*(lifecycle.drained() for lifecycle in self._models), self.rollouts.close())
        finally:
            self.loader.close()
            self._repositories.close()
            self._executor.shutdown(wait=False, cancel_futures=True)
