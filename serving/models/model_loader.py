"""Loads and unloads models: reads them from the repositories, loads an ensemble's steps first, and retries.

load(name) -> identifiers of that name -> lock of each model -> files read -> steps loaded -> ModelLifecycle.load

Locks are taken from an ensemble down to its steps: the load of an ensemble holds the ensemble's lock while the steps load, each
under its own lock. No task that holds a step's lock waits for the lock of an ensemble. An ensemble that would contain itself
is refused before its steps load. So no load waits for itself. Waking a model takes only the lock of that model. To make room
for a woken model, only models whose lock is free are put to sleep.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.validation_parameters import unknown_parameters
from repository.core.layout import ignored_folders
from serving.cli.options import Options
from serving.configuration.effective_config import effective_config
from serving.configuration.ensemble_check import step_models
from serving.core.errors import ServingError, invalid, not_found, outcome_of
from serving.core.log_context import about
from serving.core.model_identifier import ModelIdentifier
from serving.execution.crash_trace import runner
from serving.models.golden_requests import GoldenCheck
from serving.models.load_report import LoadReport, LoadStopped
from serving.models.model_lifecycle import UNLOADED, ModelLifecycle
from serving.models.model_registry import ModelRegistry
from serving.models.residency import ResidencyManager
from serving.repositories.model_repositories import ModelRepositories
from serving.repositories.model_source import Files, Unservable, VersionSource, fingerprint, read_source
from serving.repositories.overrides import Overrides
from serving.resources.network_thread import NetworkThreads
from serving.resources.runtime import Runtime
from serving.traffic.rollouts import Rollouts

log = logging.getLogger(__name__)

K = TypeVar("K")

# The most levels of nested ensembles. Requests, answers and readiness checks go through them in nested calls.
MAX_NESTED = 32


class LoadFailed(ServingError):
    """Raised when a load fails before any version is loaded. `reason` says why. The message begins with Triton's words."""

    prefix = "load failed for model '{}'"

    def __init__(self, name: str, reason: ServingError) -> None:
        super().__init__(reason.code, f"{self.prefix.format(name)}: {reason.message}")
        self.reason = reason.message


class NotPolled(LoadFailed):
    """Raised when the repository has no readable model of that name. Versions that were loaded before keep serving."""

    prefix = "failed to load '{}', failed to poll from model repository"


class Reading(NamedTuple):
    """A model as it was read from its files, ready to be loaded."""

    sources: list[VersionSource]
    override: str  # the configuration from this load request, or from an earlier one
    files: Files  # the fingerprint of its folder


class ModelLoader:
    """Runs on the event loop's thread. Files and networks are read on other threads."""

    def __init__(
        self,
        options: Options,
        runtime: Runtime,
        repositories: ModelRepositories,
        network: NetworkThreads,
        models: ModelRegistry,
        residency: ResidencyManager,
        rollouts: Rollouts,
    ) -> None:
        self._options = options
        self._runtime = runtime
        self._repositories = repositories
        self._network = network
        self._models = models
        self._residency = residency
        self._rollouts = rollouts
        self._overrides = Overrides()
        self._loads: set[asyncio.Task[LoadReport]] = set()
        self._waiting_loads: dict[ModelIdentifier, asyncio.Task[LoadReport]] = {}
        self._loading: dict[ModelIdentifier, set[ModelIdentifier]] = {}  # the steps of each model that is being loaded

    # -- loading ---------------------------------------------------------------------------------------------------
    async def load(
        self,
        name: str,
        config: str = "",
        files: Mapping[str, bytes] | None = None,
        golden: Sequence[GoldenCheck] = (),
    ) -> LoadReport:
        """Load or reload the model of that name in each namespace that has one. `files` create a model in the namespace "".

        The steps of an ensemble are loaded first, unless they are loaded already. Loading an unchanged model does nothing.
        Raises LoadStopped, with the reason and the steps so far, if a load fails.
        """
        if files:
            loads = [self._begin(ModelIdentifier(name), config, files, golden)]
        else:
            try:
                models = await self._find(name)
            except NotPolled as error:
                raise LoadStopped(error, LoadReport()) from error
            loads = [self.load_identified(model, config, golden) for model in models]
        results = await asyncio.gather(*loads, return_exceptions=True)
        reports = [_report(result) for result in results]
        report = LoadReport(reports[0].release, [step for one in reports for step in one.steps])
        failed = [result for result in results if isinstance(result, ServingError)]
        if failed:
            message = "; ".join(error.message for error in failed)
            reason = "; ".join(error.reason if isinstance(error, LoadStopped) else error.message for error in failed)
            status = next((error.http_status for error in failed if isinstance(error, LoadStopped)), None)
            raise LoadStopped(ServingError(failed[0].code, message), report, reason, status) from failed[0]
        return report

    async def load_many(self, names: list[str]) -> list[tuple[str, ServingError]]:
        """Load all these models at the same time. Return the failures."""
        return await failures({name: self.load(name) for name in names})

    async def load_identified(
        self, model: ModelIdentifier, config: str = "", golden: Sequence[GoldenCheck] = ()
    ) -> LoadReport:
        """Load one model. Loads run one after another. Waiting loads without configuration or golden requests are merged."""
        if config or golden:
            return await self._begin(model, config, {}, golden)
        task = self._waiting_loads.get(model)
        if task is None:
            task = self._waiting_loads[model] = self._task(self._load_alone(model, "", {}, ()))
            task.add_done_callback(lambda done: self._load_ended(model, done))
        return await outcome_of(task)

    async def _begin(
        self, model: ModelIdentifier, config: str, files: Mapping[str, bytes], golden: Sequence[GoldenCheck]
    ) -> LoadReport:
        """Load with the configuration and files of a request. The load continues even if its caller is cancelled."""
        return await asyncio.shield(self._task(self._load_alone(model, config, files, golden)))

    def _task(self, load: Coroutine[None, None, LoadReport]) -> "asyncio.Task[LoadReport]":
        task = self._runtime.loop.create_task(load)
        self._loads.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[LoadReport]") -> None:
        self._loads.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as seen, because asyncio would log it if every caller has gone

    def _load_ended(self, model: ModelIdentifier, task: "asyncio.Task[LoadReport]") -> None:
        if self._waiting_loads.get(model) is task:
            del self._waiting_loads[model]

    async def _load_alone(
        self, model: ModelIdentifier, config: str, files: Mapping[str, bytes], golden: Sequence[GoldenCheck]
    ) -> LoadReport:
        with about(model.name):
            return await self._load_now(model, config, files, golden)

    async def _load_now(
        self, model: ModelIdentifier, config: str, files: Mapping[str, bytes], golden: Sequence[GoldenCheck]
    ) -> LoadReport:
        lifecycle = self._models.get(model)
        if lifecycle is None:
            completing = partial(self._effective_config, model.namespace)
            lifecycle = ModelLifecycle(model, self._runtime, completing, self._residency, self._rollouts)
            self._models.add(lifecycle)
        async with lifecycle.lock:  # held while the steps load under their own locks: see the module's docstring
            self._waiting_loads.pop(model, None)  # a request from now on starts another load: it may mean newer files
            requested = lifecycle.requested
            self._models.set_requested(lifecycle, True)
            try:
                reading = await self._read_model(model, config, files)
                await self._load_steps(model, reading.sources)
                report = await self._load_with_retries(lifecycle, reading.sources, golden)
            except LoadFailed as error:
                lifecycle.error = error.reason
                if isinstance(error, NotPolled):  # the model is skipped, as in Triton: the server is ready without it
                    self._models.set_requested(lifecycle, requested)
                else:
                    lifecycle.failed = True
                log.warning("%s", error.message)
                raise
            except ServingError as error:
                lifecycle.failed = True
                log.warning("%s", error.message)
                raise
            finally:
                self._loading.pop(model, None)
            lifecycle.failed = False
            lifecycle.served = True
            log.info("loaded '%s' version %s", model, ", ".join(str(source.version) for source in reading.sources))
            self._overrides.loaded(model, reading.override, reading.files, has_files=bool(files))
            return report

    async def _load_with_retries(
        self, lifecycle: ModelLifecycle, sources: list[VersionSource], golden: Sequence[GoldenCheck]
    ) -> LoadReport:
        for _ in range(self._options.model_load_retry_count):
            try:
                return await lifecycle.load(sources, golden)
            except LoadStopped as error:
                if not error.worth_trying_again:
                    raise
                log.warning("%s; trying again", error.message)
        return await lifecycle.load(sources, golden)

    def _effective_config(self, namespace: str, source: VersionSource) -> ModelConfig:
        file = Path(source.config.default_model_filename or "its model file")
        completing = runner("completing", source.model_dir.name, source.version, file)
        return completing(effective_config, source, self._options, partial(self._step_config, namespace))

    def _step_config(self, namespace: str, name: str, version: int) -> ModelConfig:
        try:
            return self._models.step_model(namespace, name, version).config
        except ServingError as error:
            raise ServingError(error.code, f"a step needs model '{name}': {error.message}") from error

    # -- reading ---------------------------------------------------------------------------------------------------
    async def _find(self, name: str) -> list[ModelIdentifier]:
        """Return the models of a name: the models in the repositories or, if there are none, models that were loaded before.

        If the repositories know no such model, the cloud is asked, because the model may have just been published. Raises
        NotPolled if the model is found nowhere.
        """
        try:
            found = self._identifiers(name)
            if not found and self._repositories.remote and self._refreshes:
                await self._network.run(self._repositories.list_remote_model, name)
                found = self._identifiers(name)
            if not found:
                raise not_found("there is no model of that name")
        except ServingError as error:
            raise NotPolled(name, error) from error
        return found

    def _identifiers(self, name: str) -> list[ModelIdentifier]:
        return self._repositories.identifiers(name) or [loaded.identifier for loaded in self._models.named(name)]

    @property
    def _refreshes(self) -> bool:
        """Return whether a load asks the cloud for the newest files. Otherwise only polls ask the cloud."""
        return self._options.model_control_mode == "explicit"

    async def _read_model(self, model: ModelIdentifier, config: str, files: Mapping[str, bytes]) -> Reading:
        """Return the files to load. Raises LoadFailed if no version can be served, NotPolled if there is no readable model."""
        try:
            if files:
                folder: Path | None = await self._runtime.in_thread(self._overrides.write, model, config, files)
            else:
                run = self._network.run if self._repositories.remote else self._runtime.in_thread
                folder = await run(self._fetch, model)
            return await self._runtime.in_thread(self._read_with_override, model, folder or Path(model.name), config)
        except Unservable as error:
            raise LoadFailed(model.name, error) from error
        except ServingError as error:
            raise NotPolled(model.name, error) from error

    def _read_with_override(self, model: ModelIdentifier, folder: Path, config: str) -> Reading:
        """Read a model with this override or, for "", with the last one unless the files have changed since."""
        files = fingerprint(folder) if folder.is_dir() else ()
        for sentence in ignored_folders(folder) if files else ():
            log.warning("'%s': %s", model, sentence)
        override = config or self._overrides.last_config(model, files)
        sources = self._read(model, folder, override)
        for sentence in dict.fromkeys(each.message for source in sources for each in unknown_parameters(source.config)):
            log.warning("'%s': %s", model, sentence)
        return Reading(sources, override, files)

    def _read(self, model: ModelIdentifier, folder: Path, override: str = "") -> list[VersionSource]:
        options = self._options
        strict = options.disable_auto_complete_config
        return read_source(model.name, folder, override, options.model_config_name or "", strict=strict)

    def _fetch(self, model: ModelIdentifier) -> Path | None:
        """Return the folder of the model's files, after copying them to this machine if they are in the cloud."""
        return self._repositories.fetch(model, refresh=self._refreshes)

    # -- steps of ensembles ----------------------------------------------------------------------------------------
    async def _load_steps(self, ensemble: ModelIdentifier, sources: list[VersionSource]) -> None:
        names = dict.fromkeys(step for source in sources for step in step_models(source.config))
        try:
            steps = [self._models.identify_step(name, ensemble.namespace, await self._find(name)) for name in names]
            await self._refuse_cycle(ensemble, steps)
            for step in steps:
                lifecycle = self._models.get(step)
                if lifecycle is None or lifecycle.default is None:
                    await self.load_identified(step)
        except ServingError as error:
            raise LoadFailed(ensemble.name, error) from error

    async def _refuse_cycle(self, ensemble: ModelIdentifier, steps: Sequence[ModelIdentifier]) -> None:
        """Raise INVALID_ARG for an ensemble that would contain itself, by the steps of all models that are or will be loaded.

        A load records its steps before it waits for another load. So, of two ensembles that name each other, the later one is
        refused.
        """
        read: dict[ModelIdentifier, set[ModelIdentifier]] = {}  # the steps of models that are not loaded
        while unread := self._refuse_known_cycle(ensemble, steps, read):
            for model in unread:
                read[model] = await self._runtime.in_thread(self._steps_in_files, model)
        self._loading[ensemble] = set(steps)

    def _refuse_known_cycle(
        self,
        ensemble: ModelIdentifier,
        steps: Sequence[ModelIdentifier],
        read: Mapping[ModelIdentifier, set[ModelIdentifier]],
    ) -> list[ModelIdentifier]:
        """Return the models below the ensemble whose steps still have to be read. Raises INVALID_ARG if the ensemble is below
        itself, or if too many levels are below and above it."""
        unread: dict[ModelIdentifier, None] = {}
        level = {step: step for step in steps}  # each model, and the step of the ensemble that leads to it
        left = MAX_NESTED - self._levels_above(ensemble)
        while level:
            left -= 1
            if left < 0:
                raise invalid(
                    f"ensemble '{ensemble.name}' makes ensembles that are nested more than {MAX_NESTED} levels deep"
                )
            if ensemble in level:
                raise invalid(f"ensemble '{ensemble.name}' contains itself, by way of '{level[ensemble].name}'")
            below: dict[ModelIdentifier, ModelIdentifier] = {}
            for current, way in level.items():
                known = self._known_steps(current, read)
                if known is None:
                    unread[current] = None
                else:
                    below |= dict.fromkeys(known, way)
            level = below
        return list(unread)

    def _levels_above(self, ensemble: ModelIdentifier) -> int:
        """Return how many levels of serving ensembles are above this ensemble; 0 if it was never loaded."""
        lifecycle = self._models.get(ensemble)
        if lifecycle is None or not lifecycle.versions:
            return 0
        above: defaultdict[ModelIdentifier, list[ModelIdentifier]] = defaultdict(list)
        for other in self._models:
            for step in self._known_steps(other.identifier, {}) or ():
                above[step].append(other.identifier)
        level, levels = {ensemble}, 0
        while levels < MAX_NESTED and (level := {parent for one in level for parent in above.get(one, ())}):
            levels += 1
        return levels

    def _known_steps(
        self, model: ModelIdentifier, read: Mapping[ModelIdentifier, set[ModelIdentifier]]
    ) -> set[ModelIdentifier] | None:
        """Return the steps of a model that is being loaded, is loaded or was read, or None if it has to be read first."""
        if model in self._loading:
            return self._loading[model]
        lifecycle = self._models.get(model)
        if lifecycle is not None and lifecycle.default is not None:
            # A step means the model in its own namespace once that is loaded, until then perhaps a model of another namespace.
            own = {ModelIdentifier(name, model.namespace) for name in self._step_names(lifecycle)}
            return {one for one in own if self._models.get(one)} | {step.identifier for step in self._steps(lifecycle)}
        return read.get(model)

    def _steps_in_files(self, model: ModelIdentifier) -> set[ModelIdentifier]:
        """Return the steps that a model would have if it were loaded now."""
        folder = self._fetch(model)
        if folder is None:
            return set()
        sources = self._read(model, folder, self._overrides.last_config(model, fingerprint(folder)))
        return {
            self._models.identify_step(name, model.namespace, self._repositories.identifiers(name))
            for source in sources
            for name in step_models(source.config)
        }

    def break_off(self, name: str) -> None:
        """Fail a load of this model if it waits for something that may hang, so that the next load need not wait for it."""
        for lifecycle in self._models.named(name):
            lifecycle.break_off("the load was broken off")

    # -- unloading -------------------------------------------------------------------------------------------------
    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Begin to drain a model in each namespace and, with `unload_dependents`, the models of its steps.

        Unloading an unknown model does nothing, as in Triton.
        """
        for lifecycle in self._models.named(name):
            await self._unload(lifecycle, unload_dependents)

    async def unload_identified(self, model: ModelIdentifier, reason: str = "") -> None:
        """Begin to drain one model, if it is loaded. reason: text for the repository index."""
        lifecycle = self._models.get(model)
        if lifecycle is not None:
            await self._unload(lifecycle)
            lifecycle.error = reason

    async def _unload(self, lifecycle: ModelLifecycle, unload_dependents: bool = False) -> None:
        lifecycle.break_off(UNLOADED)
        async with lifecycle.lock:
            steps = self._steps(lifecycle) if unload_dependents else []
            self._models.set_requested(lifecycle, False)
            lifecycle.failed = False
            lifecycle.unload()
            self._overrides.drop(lifecycle.identifier)
        with about(lifecycle.name):
            log.info("unloading '%s'", lifecycle.identifier)
        for step in steps:  # the ensemble's lock is free again: a load of the ensemble may wait for a step
            await self._unload(step, unload_dependents=True)

    def _steps(self, lifecycle: ModelLifecycle) -> list[ModelLifecycle]:
        """Return the models of an ensemble's steps, each once."""
        found = {}
        for name in self._step_names(lifecycle):
            with suppress(ServingError):
                step = self._models.find_step(name, lifecycle.identifier.namespace)
                found[step.identifier] = step
        return list(found.values())

    def _step_names(self, lifecycle: ModelLifecycle) -> set[str]:
        models = [version.model for version in lifecycle.versions.values() if version.model]
        return {step for model in models for step in step_models(model.config)}

    def close(self) -> None:
        """Delete the files that load requests contained."""
        self._overrides.close()


def _report(result: "LoadReport | BaseException") -> LoadReport:
    """Return the report of a load that succeeded or failed. Raises any error that is not a ServingError."""
    if isinstance(result, LoadReport):
        return result
    if isinstance(result, ServingError):
        return result.report if isinstance(result, LoadStopped) else LoadReport()
    raise result


async def failures(loads: Mapping[K, Coroutine[None, None, object]]) -> list[tuple[K, ServingError]]:
    """Await loads at the same time, and return the failures. Raises any error that is not a ServingError."""
    results = await asyncio.gather(*loads.values(), return_exceptions=True)
    found = []
    for key, result in zip(loads, results, strict=True):
        if isinstance(result, ServingError):
            found.append((key, result))
        elif isinstance(result, BaseException):
            raise result
    return found
