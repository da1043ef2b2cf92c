"""The model repository: which models there are, loading and unloading them, following the folder in poll mode."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository import validation
from repository.errors import RepositoryError
from serving import autocomplete
from serving.custom_metrics import CustomMetrics
from serving.devices import refuse_on_full_gpus
from serving.ensemble_check import check_ensemble, step_models
from serving.errors import ServingError, invalid, not_found
from serving.model import Model
from serving.model_lifecycle import ModelLifecycle
from serving.model_source import VersionSource, read_source, write_override
from serving.network_thread import NetworkThreads
from serving.options import Options
from serving.rate_limiter import RateLimiter
from serving.repositories import Repositories
from serving.request import InferenceRequest
from serving.residency import ResidencyKeeper
from serving.response_cache import ResponseCache
from serving.runtime import ModelControl, Runtime
from serving.sleeping_model import SleepingModel
from serving.statistics import ModelStatistics

log = logging.getLogger(__name__)

DRAIN_INTERVAL_S = 0.005

P = ParamSpec("P")
T = TypeVar("T")


class ModelRepositoryManager:
    """All models of one or several repositories. Runs on the event loop's thread."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop, control: ModelControl | None = None) -> None:
        self._options = options
        self._loop = loop
        self._repositories = Repositories(options)
        self._network = NetworkThreads(loop, options.model_load_thread_count)
        self._executor = ThreadPoolExecutor(options.model_load_thread_count, thread_name_prefix="load")
        self._runtime = Runtime(
            loop=loop,
            executor=self._executor,
            infer=self.infer,
            strict_devices=options.strict_devices,
            cache=ResponseCache(options.cache_size) if options.cache_size else None,
            control=control,
            limiter=RateLimiter(options.rate_limit_resource) if options.rate_limit == "execution_count" else None,
            summaries=options.metric_enabled("summary_latencies"),
            first_responses=options.histogram_latencies,
        )
        self._keeper = ResidencyKeeper(options.memory_budget, options.gpu_memory_budget)
        self._models: dict[str, ModelLifecycle] = {}
        self._waiting_loads: dict[str, asyncio.Task[None]] = {}
        self._looked = False
        self._seen: dict[str, object] = {}  # poll mode: what each model looked like when it was last taken up
        self._overrides: dict[str, Path] = {}  # temporary folders of models loaded with files of the request

    # -- requests --------------------------------------------------------------------------------------------------
    def infer(self, request: InferenceRequest) -> None:
        """Queue a request with its model; used by frontends and by ensemble steps."""
        self.resolve(request.model_name, request.model_version).submit(request)

    def resolve(self, name: str, version: str) -> Model | SleepingModel:
        """The loaded or sleeping model for a name and version as asked; NOT_FOUND, UNAVAILABLE or INVALID_ARG otherwise."""
        lifecycle = self._models.get(name)
        if lifecycle is None:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return lifecycle.resolve(version)

    def ready_versions(self, name: str) -> list[int]:
        return self._models[name].ready_versions()

    # -- what there is ---------------------------------------------------------------------------------------------
    def names(self) -> list[str]:
        """Every model of the repositories, sorted."""
        return self._repositories.names()

    @property
    def follows_the_cloud(self) -> bool:
        return bool(self._repositories.remote)

    def index(self, ready: bool) -> pb.RepositoryIndexResponse:
        """Every model on disk or loaded, a row for each version that is or was loaded."""
        answer = pb.RepositoryIndexResponse()
        for name in sorted({*self.names(), *self._models}):
            lifecycle = self._models.get(name)
            if lifecycle is None or not lifecycle.versions:
                if not ready:
                    reason = lifecycle.error if lifecycle else self._repositories.why_not(name)
                    answer.models.add(name=name, state="UNAVAILABLE" if reason else "", reason=reason)
                continue
            for version, entry in sorted(lifecycle.versions.items()):
                if not ready or entry.state.value == "READY":
                    reason = entry.reason or lifecycle.failed_reload(entry)
                    reason = reason or ("; ".join(entry.model.warnings) if entry.model else "")
                    answer.models.add(name=name, version=str(version), state=entry.state.value, reason=reason)
        return answer

    def lifecycles(self) -> list[ModelLifecycle]:
        return list(self._models.values())

    @property
    def custom_metrics(self) -> CustomMetrics:
        return self._runtime.metrics

    @property
    def response_cache(self) -> ResponseCache | None:
        return self._runtime.cache

    def statistics(self) -> list[ModelStatistics]:
        """Of every version that is or was loaded, with the gauges refreshed."""
        found = []
        for lifecycle in self._models.values():
            for entry in lifecycle.versions.values():
                entry.statistics.pending = sum(model.pending for model in entry.models)
                entry.statistics.in_flight = sum(model.in_flight for model in entry.models)
                entry.statistics.memory = entry.memory
                found.append(entry.statistics)
        return found

    def all_wanted_are_ready(self) -> bool:
        """Whether every model that was asked for serves; one that is loading for the first time does not count against."""
        return all(lifecycle.default is not None or lifecycle.lock.locked() for lifecycle in self._wanted())

    async def all_confirm_ready(self) -> bool:
        """Whether every model that serves says that it is ready, where it has a say."""
        models = [
            model for lifecycle in self._wanted() for entry in lifecycle.versions.values() if (model := entry.model)
        ]
        return all(await asyncio.gather(*(model.confirm_ready() for model in models)))

    def _wanted(self) -> list[ModelLifecycle]:
        return [lifecycle for lifecycle in self._models.values() if lifecycle.wanted]

    # -- loading ---------------------------------------------------------------------------------------------------
    async def load(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model and, for an ensemble, the models of its steps that are not loaded.

        Loads of one model run one after another; those that wait are one. Loading what has not changed does nothing.
        """
        if config or files:
            await self._load_alone(name, config, files or {})
            return
        task = self._waiting_loads.get(name)
        if task is None:
            task = self._waiting_loads[name] = self._loop.create_task(self._load_alone(name, "", {}))
            task.add_done_callback(lambda done: self._load_ended(name, done))
        await asyncio.shield(task)

    def _load_ended(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._waiting_loads.get(name) is task:
            del self._waiting_loads[name]
        if not task.cancelled():
            task.exception()  # seen, even where every caller has gone

    async def load_many(self, names: list[str]) -> list[tuple[str, ServingError]]:
        """Load all; the failures."""
        results = await asyncio.gather(*(self.load(name) for name in names), return_exceptions=True)
        failures = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, ServingError):
                failures.append((name, result))
            elif isinstance(result, BaseException):
                raise result
        return failures

    async def _load_alone(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        lifecycle = self._models.get(name)
        if lifecycle is None:
            if not files and not await self._is_there(name):
                raise not_found(f"failed to load '{name}': no model of that name is in the model repository")
            lifecycle = self._models.setdefault(name, ModelLifecycle(name, self._runtime, self._complete, self._keeper))
        async with lifecycle.lock:
            self._waiting_loads.pop(name, None)  # whoever asks from here on may mean newer files
            lifecycle.wanted = True
            try:
                if files:
                    folder: Path | None = await self._in_thread(self._write_files, name, config, files)
                else:
                    folder = await self._fetched(name)
                sources = await self._in_thread(self._read, name, folder or Path(name), config)
                await self._load_steps(sources)
            except ServingError as error:
                lifecycle.error = error.message
                log.warning("failed to load '%s': %s", name, error.message)
                raise
            try:
                await self._load_with_retries(lifecycle, sources)
            except ServingError as error:
                log.warning("%s", error.message)
                raise
            log.info("loaded '%s' version %s", name, ", ".join(str(source.version) for source in sources))
            if not files:
                self._drop_override(name)

    async def _load_with_retries(self, lifecycle: ModelLifecycle, sources: list[VersionSource]) -> None:
        for left in range(self._options.model_load_retry_count, -1, -1):
            try:
                await lifecycle.load(sources)
                return
            except ServingError as error:
                if not left:
                    raise
                log.warning("%s; trying again", error.message)

    async def _load_steps(self, sources: list[VersionSource]) -> None:
        for step in dict.fromkeys(step for source in sources for step in step_models(source.config)):
            await self._in_thread(self._refuse_cycle, sources[0].config.name, step)
            lifecycle = self._models.get(step)
            if lifecycle is None or lifecycle.default is None:
                await self.load(step)

    def _refuse_cycle(self, name: str, step: str) -> None:
        """An ensemble may contain ensembles, but not itself; read from the files, before anything waits for anything."""
        open_names, seen = [step], set[str]()
        while open_names:
            current = open_names.pop()
            if current == name:
                raise invalid(f"ensemble '{name}' contains itself, by way of '{step}'")
            folder = None if current in seen else self._fetch(current)
            if folder is None:
                continue
            seen.add(current)
            open_names += {s for source in self._read(current, folder) for s in step_models(source.config)}

    def _complete(self, source: VersionSource) -> ModelConfig:
        """On a worker thread: the configuration with what the model file knows, checked."""
        if self._options.disable_auto_complete_config:
            config = autocomplete.complete_backend_only(source.config, source.model_dir, source.version)
        else:
            config = autocomplete.complete(source.config, source.model_dir, source.version)
        for backend, setting, value in self._options.backend_config:
            if backend == config.backend and setting not in config.parameters:
                config.parameters[setting].string_value = value
        problems = validation.validate(config, name=config.name)
        if problems:
            raise invalid(f"the configuration of '{config.name}' is not valid: {'; '.join(map(str, problems))}")
        if config.platform == "ensemble":
            check_ensemble(config, self._step_config)
        refuse_on_full_gpus(config, dict(self._options.model_load_gpu_limit))
        return config

    def _step_config(self, name: str, version: int) -> ModelConfig:
        try:
            return self.resolve(name, "" if version < 1 else str(version)).config
        except ServingError as error:
            raise ServingError(error.code, f"a step needs model '{name}': {error.message}") from error

    def _write_files(self, name: str, config: str, files: Mapping[str, bytes]) -> Path:
        if not config:
            raise invalid("files in a load request need the configuration in its 'config' parameter too")
        root = Path(tempfile.mkdtemp(prefix="slipway-override-"))
        try:
            write_override(root, files)
        except RepositoryError as error:
            shutil.rmtree(root)
            raise invalid(str(error)) from error
        self._drop_override(name)
        self._overrides[name] = root
        return root

    def _drop_override(self, name: str) -> None:
        folder = self._overrides.pop(name, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _is_there(self, name: str) -> bool:
        """Whether a repository has the model; one in the cloud is asked, it may have been published a moment ago."""
        if self._repositories.folder(name) is not None:
            return True
        return self.follows_the_cloud and await self._fetched(name) is not None

    async def _fetched(self, name: str) -> Path | None:
        """The model's files, on this machine by now."""
        return await (self._network.run if self.follows_the_cloud else self._in_thread)(self._fetch, name)

    def _read(self, name: str, folder: Path, override: str = "") -> list[VersionSource]:
        return read_source(name, folder, override, self._options.model_config_name or "")

    def _fetch(self, name: str) -> Path | None:
        """On another thread: the model's files. Unless polls say what there is, the cloud is asked for its newest."""
        return self._repositories.fetch(name, refresh=self._options.model_control_mode == "explicit")

    async def _in_thread(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._executor, lambda: function(*arguments, **named))

    # -- unloading -------------------------------------------------------------------------------------------------
    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Begin to drain a model; with `unload_dependents` also the models that only its steps call."""
        lifecycle = self._models.get(name)
        if lifecycle is None:
            if self._repositories.folder(name) is None:
                raise not_found(f"failed to unload '{name}': no model of that name is in the model repository")
            return
        async with lifecycle.lock:
            steps = {s for e in lifecycle.versions.values() if e.model for s in step_models(e.model.config)}
            lifecycle.unload()
            self._drop_override(name)
        log.info("unloading '%s'", name)
        if unload_dependents:
            for step in steps:
                await self.unload(step, unload_dependents=True)

    async def shutdown(self) -> None:
        """Finish every request, then unload: a request under way may still call other models (steps, Python models)."""
        self._keeper.stop()
        try:
            while any(lifecycle.busy() for lifecycle in self._models.values()):
                await asyncio.sleep(DRAIN_INTERVAL_S)
            for lifecycle in self._models.values():
                lifecycle.unload()
            await asyncio.gather(*(lifecycle.drained() for lifecycle in self._models.values()))
        finally:
            for name in list(self._overrides):
                self._drop_override(name)
            self._repositories.close()
            self._executor.shutdown(wait=False)

    # -- poll mode -------------------------------------------------------------------------------------------------
    async def look(self) -> list[tuple[str, ServingError]]:
        """List what is in the cloud; the addresses that did not answer. In poll mode a change must be seen twice, then."""
        settling = self._looked and self._options.model_control_mode == "poll"
        self._looked = True
        return await self._network.run(self._repositories.look, settling=settling) if self.follows_the_cloud else []

    async def poll(self) -> list[tuple[str, ServingError]]:
        """Take up what changed in the repositories since the last look; the failures.

        A model that fails is tried again when its files change, or when it could not be copied.
        """
        failures = await self.look()
        looks = await self._in_thread(self._repositories.fingerprints)
        changed = [name for name in looks if self._seen.get(name) != looks[name]]
        for name in self._seen.keys() - looks.keys():
            await self.unload(name)
            await self._in_thread(self._repositories.forget, name)
        self._seen = looks
        for name in changed:
            if reason := self._repositories.why_not(name):
                failures.append((name, invalid(reason)))
                await self._unload_ambiguous(name, reason)
        failed = await self.load_many([name for name in changed if not self._repositories.why_not(name)])
        for name, _ in failed:
            if not self._repositories.is_current(name):
                self._seen.pop(name, None)
        return failures + failed

    async def _unload_ambiguous(self, name: str, reason: str) -> None:
        """As Triton does, where a second repository has come to have the model too."""
        log.error("%s", reason)
        if name in self._models:
            await self.unload(name)
            self._models[name].error = reason
