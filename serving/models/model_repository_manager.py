"""The model repository: which models there are, loading and unloading them, following the folder in poll mode."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.condition import Condition
from repository.core.layout import ignored_folders
from serving.cli.host_policy import host_policies
from serving.cli.options import Options
from serving.core.errors import NotYet, ServingError, invalid, not_found
from serving.core.model_identifier import ModelIdentifier
from serving.core.request import InferenceRequest
from serving.execution.crash_trace import runner
from serving.execution.readiness import confirmed
from serving.extensions.classification import Labels
from serving.models.ensemble_check import step_models
from serving.models.known_models import KnownModels
from serving.models.model import Model
from serving.models.model_completion import complete
from serving.models.model_lifecycle import ModelLifecycle, State, VersionEntry
from serving.models.residency import ResidencyKeeper
from serving.models.sleeping_model import SleepingModel
from serving.models.wanted_models import WantedModels
from serving.repositories.model_repositories import Repositories
from serving.repositories.model_source import Files, NothingSelected, VersionSource, fingerprint, read_source
from serving.repositories.overrides import Overrides
from serving.repositories.repository_index import IndexRow
from serving.resources.custom_metrics import CustomMetrics
from serving.resources.network_thread import NetworkThreads
from serving.resources.rate_limiter import RateLimiter
from serving.resources.response_cache import ResponseCache
from serving.resources.runtime import ModelControl, Runtime
from serving.telemetry.statistics import ModelStatistics

log = logging.getLogger(__name__)

DRAIN_INTERVAL_S = 0.005

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")


class LoadFailed(ServingError):
    """No version could be tried; `reason` says why, the message begins with the words that Triton has for it."""

    said = "load failed for model '{}'"

    def __init__(self, name: str, reason: ServingError) -> None:
        super().__init__(reason.code, f"{self.said.format(name)}: {reason.message}")
        self.reason = reason.message


class NotPolled(LoadFailed):
    """What lies in the repository under that name cannot be read as a model; what was loaded of it before goes on serving."""

    said = "failed to load '{}', failed to poll from model repository"


class Read(NamedTuple):
    """A model as it is to be loaded."""

    sources: list[VersionSource]
    override: str  # the configuration that came with a load request, this or an earlier one
    looks: Files  # of its folder


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
            infer_step=self.infer_step,
            step_labels=self._step_labels,
            strict_devices=options.strict_devices,
            heartbeat_timeout_s=options.process_heartbeat_timeout_secs,
            cache=ResponseCache(options.cache_size) if options.cache_size else None,
            control=control,
            limiter=RateLimiter(options.rate_limit_resource) if options.rate_limit == "execution_count" else None,
            host_policies=host_policies(options.host_policy),
            summaries=options.metric_enabled("summary_latencies"),
            first_responses=options.histogram_latencies,
        )
        self._keeper = ResidencyKeeper(options.memory_budget, options.gpu_memory_budget)
        self._models = KnownModels()
        self._by_name = self._models.by_name
        self._overrides = Overrides()
        self._wanted_models = WantedModels(options.wanted_models_file) if options.wanted_models_file else None
        self._waiting_loads: dict[ModelIdentifier, asyncio.Task[None]] = {}
        self._looked = False
        self._told: set[str] = set()  # of folders that are passed over
        self._seen: dict[ModelIdentifier, object] = {}  # poll mode: what each looked like when it was last taken up

    # -- requests --------------------------------------------------------------------------------------------------
    def infer(self, request: InferenceRequest) -> None:
        """Queue a request with its model."""
        self.resolve(request.model_name, request.model_version).submit(request)

    def infer_step(self, namespace: str, request: InferenceRequest) -> None:
        """Queue a request of an ensemble, which is in that namespace, with the model of one of its steps."""
        self._models.near(request.model_name, namespace).resolve(request.model_version).submit(request)

    def resolve(self, name: str, version: str) -> Model | SleepingModel:
        """The loaded or sleeping model for a name and version as asked; NOT_FOUND, UNAVAILABLE or INVALID_ARG otherwise."""
        try:
            lifecycle = self._by_name.get(name) or self._models.find(name)
            return lifecycle.resolve(version)
        except ServingError as error:
            raise self._not_yet(name, error) from None

    def _not_yet(self, name: str, error: ServingError) -> ServingError:
        """The error of a model of which no version serves; another one where somebody is about to load it."""
        lifecycle = self._by_name.get(name)
        if self._wanted_models is None or (lifecycle and lifecycle.default) or name not in self._wanted_models:
            return error
        if lifecycle is None or not lifecycle.wanted:
            return NotYet(f"model '{name}' is not loaded yet, but will be in a moment: try again")
        return NotYet(error.message)

    def ready_versions(self, name: str) -> list[int]:
        return self._models.find(name).ready_versions()

    # -- what there is ---------------------------------------------------------------------------------------------
    def names(self) -> list[str]:
        """Of every model of the repositories, sorted, each once."""
        return list(dict.fromkeys(model.name for model in self._repositories.models()))

    @property
    def follows_the_cloud(self) -> bool:
        return bool(self._repositories.remote)

    def index(self, ready: bool) -> list[IndexRow]:
        """Every model on disk or loaded, a row for each version that is or was loaded."""
        rows: list[IndexRow] = []
        for model in sorted({*self._repositories.models(), *(lifecycle.identifier for lifecycle in self._models)}):
            lifecycle, name = self._models.get(model), model.name
            if lifecycle is not None and lifecycle.versions:
                rows += [row for row in self._version_rows(lifecycle) if not ready or row.state == "READY"]
            elif not ready:
                reason = lifecycle.error if lifecycle else self._repositories.why_not(model)
                rows.append(IndexRow(name, state="UNAVAILABLE" if reason else "", reason=reason, failed=bool(reason)))
        return rows

    @property
    def custom_metrics(self) -> CustomMetrics:
        return self._runtime.metrics

    @property
    def response_cache(self) -> ResponseCache | None:
        return self._runtime.cache

    def statistics(self, ready: bool = False) -> list[ModelStatistics]:
        """Of every version that takes requests or, unless only those are asked for, still has some."""
        return self._statistics(lambda entry: entry.model is not None if ready else bool(entry.models))

    def known_statistics(self) -> list[ModelStatistics]:
        """Of every version that is or was loaded; those of an unloaded one are zero."""
        return self._statistics(lambda entry: True)

    async def memory_read(self) -> None:
        await self._runtime.child_memory.refreshed()

    def _statistics(self, wanted: Callable[[VersionEntry], bool]) -> list[ModelStatistics]:
        """With the gauges refreshed."""
        found = []
        for lifecycle in self._models:
            for entry in filter(wanted, lifecycle.versions.values()):
                state, entry.statistics.condition, _ = self._shown(lifecycle, entry)
                entry.statistics.state = state.value
                entry.statistics.failed = entry.failed
                entry.statistics.pending = sum(model.pending for model in entry.models)
                entry.statistics.in_flight = sum(model.in_flight for model in entry.models)
                entry.statistics.memory = entry.memory
                found.append(entry.statistics)
        return found

    def _version_rows(self, lifecycle: ModelLifecycle) -> Iterator[IndexRow]:
        for version, entry in sorted(lifecycle.versions.items()):
            state, condition, missing = self._shown(lifecycle, entry)
            failed_reload = lifecycle.failed_reload(entry)
            said = entry.model.complaints() + entry.model.warnings if entry.model else []
            reason = entry.reason or missing or failed_reload or "; ".join(said)
            failed = entry.failed or (bool(failed_reload) and not entry.asleep)
            yield IndexRow(lifecycle.name, str(version), state.value, reason, condition, failed)

    def _shown(self, lifecycle: ModelLifecycle, entry: VersionEntry) -> tuple[State, Condition, str]:
        """State and condition of a version, and the step that it lacks: an ensemble is only as ready as its steps."""
        missing = ""
        if entry.state is State.READY and entry.model is not None:
            missing = self.missing_step(entry.model, lifecycle.identifier.namespace)
        return (State.UNAVAILABLE, Condition.STEPLESS, missing) if missing else (entry.state, entry.condition, "")

    def missing_step(self, model: Model | SleepingModel, namespace: str) -> str:
        """Why an ensemble could not answer now: a step of it, or of an ensemble in it, that is not ready; "" where it could."""
        for step in model.config.ensemble_scheduling.step:
            try:
                found = self._step_model(namespace, step.model_name, step.model_version)
            except ServingError as error:
                return f"its step '{step.model_name}' is not ready: {error.message}"
            if missing := self.missing_step(found, namespace):
                return f"its step '{step.model_name}' is not ready: {missing}"
        return ""

    def missing_repositories(self) -> list[Path]:
        """Those that were not there at start and have not come."""
        return self._repositories.missing

    def all_wanted_are_ready(self) -> bool:
        """Whether every model that was asked for serves; one that is loading for the first time does not count against."""
        return all(lifecycle.default is not None or lifecycle.lock.locked() for lifecycle in self._wanted())

    async def all_confirm_ready(self) -> bool:
        """Whether every model that serves says that it is ready, where it has a say."""
        entries = [entry for lifecycle in self._wanted() for entry in lifecycle.versions.values() if entry.model]
        said = await asyncio.gather(*(confirmed(partial(getattr, entry, "model")) for entry in entries))
        return all(yes or entry.model is None for yes, entry in zip(said, entries, strict=True))

    def _wanted(self) -> list[ModelLifecycle]:
        return [lifecycle for lifecycle in self._models if lifecycle.wanted]

    # -- loading ---------------------------------------------------------------------------------------------------
    async def load(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload the model of that name in each namespace that has one; files make one in the namespace "".

        Of an ensemble the models of its steps, too, that are not loaded. Loading what has not changed does nothing.
        """
        if files:
            await self._load_alone(ModelIdentifier(name), config, files)
            return
        models = await self._find(name)
        failures = await _failures({model: self._load(model, config) for model in models})
        if failures:
            errors = [error for _, error in failures]
            raise ServingError(errors[0].code, "; ".join(error.message for error in errors)) from errors[0]

    async def load_many(self, names: list[str]) -> list[tuple[str, ServingError]]:
        """Load all; the failures."""
        return await _failures({name: self.load(name) for name in names})

    async def _load(self, model: ModelIdentifier, config: str = "") -> None:
        """Loads of one model run one after another; those that wait are one."""
        if config:
            await self._load_alone(model, config, {})
            return
        task = self._waiting_loads.get(model)
        if task is None:
            task = self._waiting_loads[model] = self._loop.create_task(self._load_alone(model, "", {}))
            task.add_done_callback(lambda done: self._load_ended(model, done))
        await asyncio.shield(task)

    def _load_ended(self, model: ModelIdentifier, task: "asyncio.Task[None]") -> None:
        if self._waiting_loads.get(model) is task:
            del self._waiting_loads[model]
        if not task.cancelled():
            task.exception()  # seen, even where every caller has gone

    async def _load_alone(self, model: ModelIdentifier, config: str, files: Mapping[str, bytes]) -> None:
        lifecycle = self._models.get(model)
        if lifecycle is None:
            lifecycle = ModelLifecycle(model, self._runtime, partial(self._complete, model.namespace), self._keeper)
            self._models.add(lifecycle)
        async with lifecycle.lock:
            self._waiting_loads.pop(model, None)  # whoever asks from here on may mean newer files
            wanted = lifecycle.wanted
            self._models.want(lifecycle, True)
            try:
                read = await self._polled(model, config, files)
                await self._load_steps(model, read.sources)
            except LoadFailed as error:
                lifecycle.error = error.reason
                if isinstance(error, NotPolled):  # passed over, as in Triton: the server is ready without it
                    self._models.want(lifecycle, wanted)
                log.warning("%s", error.message)
                raise
            try:
                await self._load_with_retries(lifecycle, read.sources)
            except ServingError as error:
                log.warning("%s", error.message)
                raise
            log.info("loaded '%s' version %s", model, ", ".join(str(source.version) for source in read.sources))
            self._overrides.loaded(model, read.override, read.looks, has_files=bool(files))

    async def _polled(self, model: ModelIdentifier, config: str, files: Mapping[str, bytes]) -> "Read":
        """What is there to be loaded; NotPolled where that cannot be told."""
        try:
            if files:
                folder: Path | None = await self._in_thread(self._overrides.write, model, config, files)
            else:
                folder = await self._fetched(model)
            return await self._in_thread(self._read_over, model, folder or Path(model.name), config)
        except NothingSelected as error:
            raise LoadFailed(model.name, error) from error
        except ServingError as error:
            raise NotPolled(model.name, error) from error

    def _read_over(self, model: ModelIdentifier, folder: Path, config: str) -> "Read":
        """Read with the override that is given, else with the one before, unless the files have changed since."""
        looks = fingerprint(folder) if folder.is_dir() else ()
        for sentence in ignored_folders(folder) if looks else ():
            log.warning("'%s': %s", model, sentence)
        override = config or self._overrides.kept(model, looks)
        return Read(self._read(model, folder, override), override, looks)

    async def _load_with_retries(self, lifecycle: ModelLifecycle, sources: list[VersionSource]) -> None:
        for left in range(self._options.model_load_retry_count, -1, -1):
            try:
                await lifecycle.load(sources)
                return
            except ServingError as error:
                if not left:
                    raise
                log.warning("%s; trying again", error.message)

    async def _load_steps(self, ensemble: ModelIdentifier, sources: list[VersionSource]) -> None:
        try:
            await self._load_missing_steps(ensemble, sources)
        except ServingError as error:
            raise LoadFailed(ensemble.name, error) from error

    async def _load_missing_steps(self, ensemble: ModelIdentifier, sources: list[VersionSource]) -> None:
        for name in dict.fromkeys(step for source in sources for step in step_models(source.config)):
            step = self._models.meant(name, ensemble.namespace, await self._find(name))
            await self._in_thread(self._refuse_cycle, ensemble, step)
            lifecycle = self._models.get(step)
            if lifecycle is None or lifecycle.default is None:
                await self._load(step)

    def _refuse_cycle(self, ensemble: ModelIdentifier, step: ModelIdentifier) -> None:
        """An ensemble may contain ensembles, but not itself; read from the files, before anything waits for anything."""
        ahead, seen = [step], set[ModelIdentifier]()
        while ahead:
            current = ahead.pop()
            if current == ensemble:
                raise invalid(f"ensemble '{ensemble.name}' contains itself, by way of '{step.name}'")
            folder = None if current in seen else self._fetch(current)
            if folder is None:
                continue
            seen.add(current)
            names = {name for source in self._read(current, folder) for name in step_models(source.config)}
            ahead += [self._models.meant(name, current.namespace, self._repositories.having(name)) for name in names]

    def _complete(self, namespace: str, source: VersionSource) -> ModelConfig:
        file = Path(source.config.default_model_filename or "its model file")
        completing = runner("completing", source.model_dir.name, source.version, file)
        config: ModelConfig = completing(complete, source, self._options, partial(self._step_config, namespace))
        return config

    def _step_model(self, namespace: str, name: str, version: int) -> Model | SleepingModel:
        return self._models.near(name, namespace).resolve("" if version < 1 else str(version))

    def _step_labels(self, namespace: str, name: str, version: int) -> Labels:
        try:
            return self._step_model(namespace, name, version).labels
        except ServingError:  # unloaded since it has answered
            return {}

    def _step_config(self, namespace: str, name: str, version: int) -> ModelConfig:
        try:
            return self._step_model(namespace, name, version).config
        except ServingError as error:
            raise ServingError(error.code, f"a step needs model '{name}': {error.message}") from error

    async def _find(self, name: str) -> list[ModelIdentifier]:
        """The models of a name: what the repositories have, else what was loaded before.

        The cloud is asked for what is not known: it may have been published a moment ago.
        """
        try:
            found = self._having(name)
            if not found and self.follows_the_cloud and self._refreshes:
                await self._network.run(self._repositories.ask_for, name)
                found = self._having(name)
            if not found:
                raise not_found("no model of that name is there")
        except ServingError as error:
            raise NotPolled(name, error) from error
        return found

    def _having(self, name: str) -> list[ModelIdentifier]:
        return self._repositories.having(name) or [known.identifier for known in self._models.named(name)]

    @property
    def _refreshes(self) -> bool:
        """Whether a load asks the cloud for its newest; else polls say what there is."""
        return self._options.model_control_mode == "explicit"

    async def _fetched(self, model: ModelIdentifier) -> Path | None:
        """The model's files, on this machine by now."""
        return await (self._network.run if self.follows_the_cloud else self._in_thread)(self._fetch, model)

    def _fetch(self, model: ModelIdentifier) -> Path | None:
        return self._repositories.fetch(model, refresh=self._refreshes)

    def _read(self, model: ModelIdentifier, folder: Path, override: str = "") -> list[VersionSource]:
        options = self._options
        strict = options.disable_auto_complete_config
        return read_source(model.name, folder, override, options.model_config_name or "", strict=strict)

    async def _in_thread(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._executor, lambda: function(*arguments, **named))

    # -- unloading -------------------------------------------------------------------------------------------------
    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Begin to drain a model, in each namespace; with `unload_dependents` also the models that only its steps call.

        Unloading what is not there does nothing, as in Triton.
        """
        for lifecycle in self._models.named(name):
            await self._unload(lifecycle, unload_dependents)

    async def _unload(self, lifecycle: ModelLifecycle, unload_dependents: bool = False) -> None:
        async with lifecycle.lock:
            steps = self._steps(lifecycle) if unload_dependents else []
            self._models.want(lifecycle, False)
            lifecycle.unload()
            self._overrides.drop(lifecycle.identifier)
        log.info("unloading '%s'", lifecycle.identifier)
        for step in steps:
            await self._unload(step, unload_dependents=True)

    def _steps(self, lifecycle: ModelLifecycle) -> list[ModelLifecycle]:
        """The models that an ensemble's steps mean, each once."""
        names = {
            step for entry in lifecycle.versions.values() if entry.model for step in step_models(entry.model.config)
        }
        found = {}
        for name in names:
            with suppress(ServingError):
                step = self._models.near(name, lifecycle.identifier.namespace)
                found[step.identifier] = step
        return list(found.values())

    async def shutdown(self) -> None:
        """Finish every request, then unload: a request under way may still call other models (steps, Python models)."""
        self._keeper.stop()
        try:
            while any(lifecycle.busy() for lifecycle in self._models):
                await asyncio.sleep(DRAIN_INTERVAL_S)
            for lifecycle in self._models:
                lifecycle.unload()
            await asyncio.gather(*(lifecycle.drained() for lifecycle in self._models))
        finally:
            self._overrides.close()
            self._repositories.close()
            self._executor.shutdown(wait=False, cancel_futures=True)

    # -- poll mode -------------------------------------------------------------------------------------------------
    async def look(self) -> list[tuple[str, ServingError]]:
        """List what is in the cloud; the addresses that did not answer. In poll mode a change must be seen twice, then."""
        settling = self._looked and self._options.model_control_mode == "poll"
        self._looked = True
        for sentence in await self._in_thread(self._repositories.passed_over):
            if sentence not in self._told:
                self._told.add(sentence)
                log.warning("%s", sentence)
        return await self._network.run(self._repositories.look, settling=settling) if self.follows_the_cloud else []

    async def poll(self) -> list[tuple[str, ServingError]]:
        """Take up what changed in the repositories since the last look; the failures.

        A model that fails is tried again when its files change, or when it could not be copied.
        """
        failures = await self.look()
        looks = await self._in_thread(self._repositories.fingerprints)
        changed = [model for model in looks if self._seen.get(model) != looks[model]]
        for model in self._seen.keys() - looks.keys():
            await self._unload_known(model)
            await self._in_thread(self._repositories.forget, model)
        self._seen = looks
        for model in changed:
            if reason := self._repositories.why_not(model):
                failures.append((model.name, invalid(reason)))
                log.error("%s", reason)
                await self._unload_known(model, reason)
        loads = {model: self._load(model) for model in changed if not self._repositories.why_not(model)}
        failed = await _failures(loads)
        for model, _ in failed:
            if not self._repositories.is_current(model):
                self._seen.pop(model, None)
        return failures + [(model.name, error) for model, error in failed]

    async def _unload_known(self, model: ModelIdentifier, reason: str = "") -> None:
        """What is gone or, with the reason, what a second repository has come to have: as Triton does, it is unloaded."""
        lifecycle = self._models.get(model)
        if lifecycle is not None:
            await self._unload(lifecycle)
            lifecycle.error = reason


async def _failures(loads: Mapping[K, Coroutine[Any, Any, None]]) -> list[tuple[K, ServingError]]:
    """Of loads that run side by side."""
    results = await asyncio.gather(*loads.values(), return_exceptions=True)
    failures = []
    for key, result in zip(loads, results, strict=True):
        if isinstance(result, ServingError):
            failures.append((key, result))
        elif isinstance(result, BaseException):
            raise result
    return failures
