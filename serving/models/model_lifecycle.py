"""The versions of one model and their states (UNAVAILABLE, LOADING, READY or UNLOADING), each with a reason.

A load covers all versions that the policy selects, and succeeds or fails as a whole, as in Triton. New models are built and
warmed up while the old ones serve. When all new models are ready, each version switches to its new model, and the old model
finishes its requests. If one version does not load, none of the new models serves, and the old ones keep serving.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.release import DEFAULT_ALIAS, aliases_of, is_alias, release_of
from repository.config.residency import residency_of
from repository.config.traffic import traffic_of
from repository.core.errors import InvalidConfig
from serving.core.errors import BackendFailed, Code, ServingError, invalid, not_found, unavailable, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.log_context import about
from serving.core.model_identifier import ModelIdentifier
from serving.extensions.classification import Labels
from serving.models.golden_requests import GoldenCheck, passed_before, run
from serving.models.load_report import GoldenResult, LoadProgress, LoadReport, LoadStopped, Step
from serving.models.model import Model
from serving.models.model_builder import EffectiveConfig, ModelBuilder
from serving.models.model_version import KEEPS_SERVING, ModelVersion, State
from serving.models.residency import ResidencyManager
from serving.models.sequence_route import SequenceRoute
from serving.models.sleeping_model import SleepingModel
from serving.repositories.model_source import VersionSource
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import Loading
from serving.traffic.remotes.remote_model import RemoteModel
from serving.traffic.rollout import Connected
from serving.traffic.rollouts import Rollouts
from serving.traffic.split import TrafficSplit

log = logging.getLogger(__name__)

T = TypeVar("T", VersionSource, "Change")
R = TypeVar("R")

UNLOADED = "it was unloaded"  # why a load was broken off
DEFAULT_NAMES = ("", "-1", DEFAULT_ALIAS)  # names with which a client leaves the choice of a version to the server

# Where a request goes: to a model, or to an object that chooses one of several models.
Destination = Model | SleepingModel | TrafficSplit | SequenceRoute


@dataclass(frozen=True, slots=True)
class Change:
    """The change that a load makes to one version. config: the configuration to serve with, or None if nothing changed. built:
    True if a new model is built, False if the serving model takes the configuration."""

    version: ModelVersion
    source: VersionSource
    config: ModelConfig | None
    built: bool


class _Failed(Exception):
    """Raised when a step of a load has failed for some versions. failures: version -> error."""

    def __init__(self, failures: dict[int, ServingError]) -> None:
        super().__init__(failures)
        self.failures = failures


class ModelLifecycle:
    """All versions of one model that are or were loaded. Runs on the event loop's thread."""

    def __init__(
        self,
        identifier: ModelIdentifier,
        runtime: Runtime,
        effective_config: EffectiveConfig,
        residency: ResidencyManager,
        rollouts: Rollouts,
    ) -> None:
        self.identifier = identifier
        self.name = identifier.name
        self.lock = asyncio.Lock()  # held while the model is loaded or unloaded
        self.versions: dict[int, ModelVersion] = {}
        self.default: Model | SleepingModel | None = None  # the model for requests without a version
        # Where a request without a version goes: a rollout or an open sequence may send it to another model.
        self.default_destination: Destination | None = None
        self.aliases: dict[str, int] = {}  # the aliases in the serving configuration
        self._old_aliases: set[str] = set()  # earlier aliases, under which open sequences may continue
        self.at_start = False  # whether the model was requested at the start
        self.served = False  # whether a load has succeeded since the start
        self.requested = False  # a load was requested after the last unload; strict readiness waits for this model
        self.failed = False  # whether the most recently finished load failed
        self.error = ""  # why the last load failed, if it failed before its versions were known
        self._runtime = runtime
        self._loop = runtime.loop
        self._residency = residency
        self._rollouts = rollouts
        self._builder = ModelBuilder(identifier, runtime, effective_config, residency, self._wake)
        self._drains: set[asyncio.Task[None]] = set()
        # Maps each version number and alias, as text, to its model.
        self._models_by_version: dict[str, Model | SleepingModel] = {}
        # Maps the names of versions, and names under which sequences are still open, to destinations.
        self._destinations: dict[str, Destination] = {}
        self._progress: LoadProgress | None = None  # the load that is under way or whose replaced models still drain
        self._checking: asyncio.Task[None] | None = None  # the task that runs the golden requests of the load
        self._broken_off = ""  # why the golden requests were broken off, as a clause
        self._following: asyncio.Task[None] | None = None
        residency.add(self)

    # -- requests --------------------------------------------------------------------------------------------------
    def resolve(self, version: str) -> Model | SleepingModel:
        """Return the model of a version as a client wrote it: a number, an alias, or "" or "-1" for the default.

        Raises NOT_FOUND for an unknown model or version, UNAVAILABLE for a version that does not serve, and INVALID_ARG for a
        text that is neither a number nor an alias.
        """
        found = self._models_by_version.get(version)
        return found if found is not None else self._resolve_unusual(version)

    def destination(self, version: str) -> Destination:
        """Return the destination of a request for a version as a client wrote it. Raises the same errors as `resolve`."""
        found = self._destinations.get(version)
        return found if found is not None else self._resolve_unusual(version)

    def _resolve_unusual(self, version: str) -> Model | SleepingModel:
        """Return the model of a number with leading zeros. For other versions, raise the error that says why there is none."""
        if self.default is None and not self.requested and not self.versions:
            raise not_found(f"Request for unknown model: '{self.name}' is not found{self._because()}")
        if version in ("", "-1"):
            raise unavailable(f"Request for unknown model: '{self.name}' has no available versions{self._because()}")
        number = self.aliases.get(version) or parse_requested_version(version, self.aliases)
        found = self.versions.get(number)
        if found is None:
            raise not_found(f"Request for unknown model: '{self.name}' version {number} is not found")
        if found.model is None:
            reason = f": {found.reason}" if found.reason else ""
            raise unavailable(
                f"Request for unknown model: '{self.name}' version {number} is not at ready state{reason}"
            )
        return found.model

    def busy(self) -> bool:
        """Return whether a request is under way on any version."""
        return any(model.in_flight for version in self.versions.values() for model in version.models)

    def ready_versions(self) -> list[int]:
        return sorted(number for number, version in self.versions.items() if version.model is not None)

    def aliases_of(self, number: int) -> tuple[str, ...]:
        """Return the sorted aliases of a version; none if the version does not serve."""
        serves = self.versions[number].model is not None
        return tuple(sorted(name for name, version in self.aliases.items() if version == number and serves))

    def failed_reload(self, version: ModelVersion) -> str:
        """Return why the last load failed before any version was loaded; "" if it did not, or if this version does not
        serve."""
        return KEEPS_SERVING + self.error if self.error and version.model is not None else ""

    def _because(self) -> str:
        reasons = [self.error, *(version.reason for version in self.versions.values())]
        return next((f": {reason}" for reason in reasons if reason), "")

    # -- loading ---------------------------------------------------------------------------------------------------
    async def load(self, sources: list[VersionSource], golden: Sequence[GoldenCheck] = ()) -> LoadReport:
        """Make exactly these versions READY, once they have answered the golden requests. If that fails, the old models keep
        serving, and LoadStopped is raised with the reasons of all versions."""
        self.error = ""
        numbers = [source.version for source in sources]
        before = self._progress
        progress = self._progress = LoadProgress(numbers, _release_of(sources[0]))
        try:
            await self._go_through(sources, golden, progress)
        except Exception as error:
            self._progress = None
            progress.end(failed=True)
            failures = error.failures if isinstance(error, _Failed) else None
            if failures is None:
                failures = dict.fromkeys(numbers, unexpected(error, f"loading '{self.name}'"))
            failure = self._roll_back(numbers, failures)
            raise LoadStopped(failure, progress.report, _plain_reasons(failures), _http_status(failures)) from None
        if not progress.report.steps:  # nothing has changed: show the previous load while its old models drain
            self._progress = None if before is None or before.over else before
        return progress.report

    async def _go_through(
        self, sources: list[VersionSource], golden: Sequence[GoldenCheck], progress: LoadProgress
    ) -> None:
        """Take the steps of a load in order. Raises _Failed at the first step that fails."""
        progress.begin(Step.CHECK)
        changes = await self._each(sources, partial(self._plan, golden))
        connected = await self._prepare_traffic(sources, changes)
        try:
            await self._build_and_switch(sources, changes, golden, progress, connected)
        except BaseException:
            self._rollouts.discard(self.identifier, connected)
            raise

    async def _build_and_switch(
        self,
        sources: list[VersionSource],
        changes: list[Change],
        golden: Sequence[GoldenCheck],
        progress: LoadProgress,
        connected: Mapping[str, Connected],
    ) -> None:
        built = [change for change in changes if change.built]
        if built:
            progress.begin(Step.MEMORY)
            await self._check_memory(built, awake=bool(golden))
            progress.begin(Step.LOAD, len(built))
            await self._each(built, partial(self._build, progress, bool(golden)))
            progress.begin(Step.WARM)
            await self._each(built, partial(self._warm_up, progress))
        changed = [change for change in changes if change.config is not None]
        if changed and golden:
            await self._check_golden(changed, golden, progress)
        progress.begin(Step.SWITCH)
        await self._reconfigure_all(changes)
        left = self._switch(sources, changes, golden, connected, progress.report.release)
        if changed:
            self._follow_drain(progress, left)
        else:
            progress.report.steps.clear()

    async def _each(self, things: list[T], work: Callable[[T], Coroutine[None, None, R]]) -> list[R]:
        """Work on all versions at the same time, and return the results. Raises _Failed with the failed versions' errors."""
        results = await asyncio.gather(*(work(thing) for thing in things), return_exceptions=True)
        sources = [thing.source if isinstance(thing, Change) else thing for thing in things]
        failures = {
            source.version: unexpected(result, f"loading '{self.name}'")
            for source, result in zip(sources, results, strict=True)
            if isinstance(result, BaseException)
        }
        if failures:
            raise _Failed(failures)
        return [result for result in results if not isinstance(result, BaseException)]

    async def _plan(self, golden: Sequence[GoldenCheck], source: VersionSource) -> Change:
        """Complete the configuration of a version. Most mistakes are found here, before any model is built."""
        version = self.versions.get(source.version)
        if version is None or version.model is None:
            statistics = self._builder.statistics(source.version)
            if version is None:
                version = self.versions[source.version] = ModelVersion(statistics)
            version.begin_load(statistics)
        elif version.source is not None and version.source.key == source.key:
            return Change(version, source, None, built=False)
        config = await self._builder.effective_config(source)
        asked = any(check.digest not in version.answered for check in golden)
        return Change(version, source, config, built=not version.takes_in_place(source, config, awake=asked))

    async def _prepare_traffic(self, sources: list[VersionSource], changes: list[Change]) -> dict[str, Connected]:
        """Return the remote arms of the traffic policy. Raises _Failed if an arm is not allowed or does not fit this model."""
        policy = traffic_of(sources[0].config)
        if policy is None:
            return {}
        default = _default_of(sources, aliases_of(sources[0].config))
        change = next(change for change in changes if change.source.version == default)
        config = change.config
        if config is None:  # unchanged
            assert change.version.model is not None
            config = change.version.model.config
        try:
            return await self._rollouts.prepare(self.identifier, policy, config, self._labels)
        except ServingError as error:
            raise _Failed({default: error}) from None

    def _labels(self) -> Labels:
        return self.default.labels if self.default is not None else {}

    async def _check_memory(self, built: list[Change], *, awake: bool) -> None:
        plans = [(change.version, change.source, change.config) for change in built if change.config is not None]
        if why := await self._builder.shortage(plans, awake=awake):
            error = unavailable(f"there is not enough memory to load it: {why}")
            raise _Failed({change.source.version: error for change in built})

    async def _build(self, progress: LoadProgress, awake: bool, change: Change) -> None:
        assert change.config is not None
        change.version.incoming = await self._builder.build(change.version, change.source, change.config, awake=awake)
        progress.advance()

    async def _warm_up(self, progress: LoadProgress, change: Change) -> None:
        model = change.version.incoming
        if isinstance(model, Model):
            try:
                await model.warm_up(progress)
            except Exception:
                change.version.incoming = None  # the model has freed itself
                raise

    async def _check_golden(self, changed: list[Change], golden: Sequence[GoldenCheck], progress: LoadProgress) -> None:
        """Send the golden requests to every version that changes. Raises _Failed at the first unexpected answer, or if the
        model is unloaded."""
        checks = progress.begin(Step.GOLDEN, len(changed) * len(golden)).checks = []
        self._checking = self._loop.create_task(self._ask_golden(changed, golden, checks, progress))
        try:
            await asyncio.wait({self._checking})
            if self._checking.cancelled():
                raise unavailable(f"{self._broken_off} while its golden requests ran")
            self._checking.result()
        except ServingError as error:
            failed = checks[-1].version if checks and not checks[-1].passed else changed[0].source.version
            raise _Failed({failed: error}) from None
        finally:
            self._checking.cancel()
            self._checking = None

    async def _ask_golden(
        self,
        changed: list[Change],
        golden: Sequence[GoldenCheck],
        checks: list[GoldenResult],
        progress: LoadProgress,
    ) -> None:
        for change in changed:
            version = change.version
            for one in golden:
                if not change.built and one.digest in version.answered:
                    result = passed_before(change.source.version, one)
                else:
                    model = version.incoming if change.built else version.model
                    assert isinstance(model, Model)  # awake, see `_plan`
                    result = await run(model, one, self._runtime)
                checks.append(result)
                progress.advance()
                if not result.passed:
                    raise invalid(f"golden request '{one.golden.name}' failed: {result.detail}")

    def break_off(self, reason: str) -> None:
        """Fail a load that waits for golden requests or for a child process, because either may hang. reason: a clause.

        Loads that wait for neither of these end without this call."""
        self._runtime.child_watch.break_off(self.name, reason)
        if self._checking is not None:
            self._broken_off = reason
            self._checking.cancel()

    async def _reconfigure_all(self, changes: list[Change]) -> None:
        """Give the remaining models their new configuration. If one model fails, all get their old configuration back."""
        before = {change.source.version: model.config for change in changes if (model := change.version.model)}
        try:
            await self._each(changes, self._reconfigure)
        except _Failed:
            undone = [dataclasses.replace(change, config=before.get(change.source.version)) for change in changes]
            with suppress(_Failed):
                await self._each(undone, self._reconfigure)
            raise

    async def _reconfigure(self, change: Change) -> None:
        model, config = change.version.model, change.config
        if not change.built and config is not None and model is not None and model.config is not config:
            await model.reconfigure(config)

    def _switch(
        self,
        sources: list[VersionSource],
        changes: list[Change],
        golden: Sequence[GoldenCheck],
        connected: Mapping[str, Connected],
        release: int | None,
    ) -> Callable[[], int]:
        """Send requests to the new models. Return a function that counts the open requests of the replaced models."""
        served = [version.model for version in self.versions.values() if version.model is not None]
        passed = frozenset(check.digest for check in golden)
        for change in changes:
            self._commit(change, passed, release)
        for number in self.versions.keys() - {source.version for source in sources}:
            self._retire(self.versions[number], "replaced under the version policy")
        config = sources[0].config
        self._old_aliases.update(self.aliases)
        self.aliases = aliases_of(config)
        default = _default_of(sources, self.aliases)
        left = self._rollouts.apply_policy(self.identifier, traffic_of(config), release, default, connected)
        self._choose_models()
        for request in left:
            request.submit_to(lambda request: self.destination("").submit(request))
        serves = [version.model for version in self.versions.values()]
        replaced = [model for model in served if model not in serves]
        return lambda: sum(model.in_flight for model in replaced)

    def _follow_drain(self, progress: LoadProgress, left: Callable[[], int]) -> None:
        """Keep the load's progress visible until the models that it replaced are freed, or another load begins."""
        progress.drain(left)

        async def forget() -> None:
            await self.drained()
            progress.over = True
            if self._progress is progress:
                self._progress = None

        if self._drains:
            self._following = self._loop.create_task(forget())
        else:
            self._progress = None

    def loading(self, number: int) -> Loading | None:
        """Return the progress of a version's load, or None if it is not being loaded."""
        progress = self._progress
        return progress.report_loading() if progress is not None and number in progress.versions else None

    def _commit(self, change: Change, passed: frozenset[str], release: int | None) -> None:
        version = change.version
        if change.config is not None:
            version.source, version.residency = change.source, residency_of(change.config)
            version.release = release
            version.answered = passed if change.built else version.answered | passed
        if version.incoming is not None:
            old, version.model, version.incoming = version.model, version.incoming, None
            if isinstance(version.model, Model):
                version.model.enter_service(version.statistics)
            if old is not None:
                self._drain(version, old)
        if version.model is not None:  # None if the server has begun to shut down
            self._serve(version)

    def _roll_back(self, numbers: list[int], failures: dict[int, ServingError]) -> ServingError:
        """Free the models that the failed load has built, and set the reason of each version. Return the error of the load."""
        error = ServingError(_code(failures), f"load failed for model '{self.name}': {_reasons(failures)}")
        others = f"not loaded, because {_reasons(failures)}"
        for number in numbers:
            version = self.versions[number]
            built, version.incoming = version.incoming, None
            reason = str(failures[number]) if number in failures else others
            if version.model is not None:
                self._serve(version, KEEPS_SERVING + reason if built or number in failures else "")
            else:
                version.fail(reason, draining=built is not None)
            if built is not None:
                self._drain(version, built)
        return error

    def _serve(self, version: ModelVersion, failure: str = "") -> None:
        version.serve(failure)
        self._residency.watch(version)

    # -- sleeping --------------------------------------------------------------------------------------------------
    def sleep(self, version: ModelVersion) -> "asyncio.Task[None]":
        """Free a version's weights, which its next request loads again. The returned task ends when the weights are freed."""
        model = version.model
        assert isinstance(model, Model)
        version.memory_awake = model.held
        version.note_memory(model)
        version.model = self._builder.asleep_again(version, model)
        self._serve(version)
        self._choose_models()
        return self._drain(version, model)

    async def _wake(self, version: ModelVersion, sleeping: SleepingModel) -> None:
        """Load the version for the first request, unless every waiting request has been cancelled. If a reload or an unload
        came first, the waiting requests get its outcome."""
        async with self.lock:  # waking takes no other lock, so it never waits for a load that waits for it
            if not sleeping.pending:
                return
            target = version.model
            if target is sleeping:
                assert version.source is not None
                with about(self.name, version.source.version):
                    target = await self._load_for_request(version, sleeping, version.source)
            if target is None:
                raise unavailable("it was unloaded")
            sleeping.hand_over(target)

    async def _load_for_request(self, version: ModelVersion, sleeping: SleepingModel, source: VersionSource) -> Model:
        version.state, version.reason = State.LOADING, ""
        try:
            # The configuration is completed again, because the files may have changed.
            config = await self._builder.effective_config(source)
            model = await self._builder.build_awake(version, source, config)
        except Exception as error:
            failure = unexpected(error, f"loading '{self.name}'")
            log.warning("'%s' could not be loaded for its first request: %s", self.name, failure.message)
            if version.model is sleeping:
                self._serve(version, f"the last load failed: {failure.message}")
            raise failure from None
        log.info("loaded '%s' version %d for a request", self.name, source.version)
        if version.model is sleeping:
            version.model = model
            self._serve(version)
            self._choose_models()
        else:  # the server shuts down: finish the accepted requests
            self._drain(version, model)
        return model

    # -- unloading -------------------------------------------------------------------------------------------------
    def unload(self) -> None:
        """Take no new requests. Open requests finish. Open sequences end, because no model is left to continue them."""
        self.break_off(UNLOADED)
        for version in self.versions.values():
            self._retire(version, "unloaded")
            if version.incoming is not None:  # at a shutdown, which does not wait for loads
                self._drain(version, version.incoming)
                version.incoming = None
            for model in version.draining:
                if isinstance(model, Model):
                    model.abandon_sequences()
        self._rollouts.end(self.identifier)
        self._old_aliases.clear()
        self._choose_models()

    async def drained(self) -> None:
        """Wait until no version of this model is being freed any more."""
        while self._drains:
            # Unlike gather, wait does not cancel these tasks if this caller is cancelled.
            await asyncio.wait(self._drains)

    def _retire(self, version: ModelVersion, reason: str) -> None:
        model = version.retire(reason)
        if model is not None:
            self._drain(version, model)

    def _drain(self, version: ModelVersion, model: Model | SleepingModel) -> "asyncio.Task[None]":
        version.draining.append(model)
        task = self._loop.create_task(self._drain_and_free(version, model))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)
        return task

    async def _drain_and_free(self, version: ModelVersion, model: Model | SleepingModel) -> None:
        try:
            await model.drain()
        except Exception:
            log.exception("model '%s' was not freed cleanly", self.name)
        version.draining.remove(model)
        self._choose_models()
        if version.state is State.UNLOADING and not version.draining:
            version.state = State.UNAVAILABLE
            version.statistics = self._builder.statistics(version.statistics.model_version)
        del model  # the last reference, which must be gone before memory is given back
        with suppress(RuntimeError):  # the server has ended without waiting: its executor is shut down
            await self._runtime.memory_return.after_free(self._runtime.executor)

    def _choose_models(self) -> None:
        """Set the model for each name of a version. No name means the alias `default`, or else the highest version."""
        serving = {number: version.model for number, version in sorted(self.versions.items()) if version.model}
        models = {str(number): model for number, model in serving.items()}
        models |= {name: serving[number] for name, number in self.aliases.items() if number in serving}
        self.default = models.get(DEFAULT_ALIAS) or next(reversed(serving.values()), None)
        if self.default is not None:
            models[""] = models["-1"] = self.default
        self._models_by_version = models
        self._choose_destinations(serving)

    def _choose_destinations(self, serving: dict[int, Model | SleepingModel]) -> None:
        """Set the destination of the requests for each name: the model of the name, unless a rollout splits the requests, or
        another model may have one of their sequences open."""
        destinations: dict[str, Destination] = dict(self._models_by_version)
        rollout, split = self._rollouts.of(self.identifier), None
        if rollout is not None and self.default is not None:
            configs = {number: model.config for number, model in serving.items()}
            rollout.attach(self.default.spec.version, configs, serving)
            split = rollout.split
            destinations |= {name: split for name in DEFAULT_NAMES if name in destinations}
        here = [model for version in self.versions.values() for model in version.models]
        elsewhere = self._rollouts.elsewhere(self.identifier)
        several = len(here) + len(elsewhere) > 1 or not self._old_aliases <= self.aliases.keys()
        if serving and several and any(_keeps_sequences(model.config) for model in here):
            self._route_sequences(destinations, here, elsewhere, split)
        self._destinations = destinations
        self.default_destination = destinations.get("")

    def _route_sequences(
        self,
        destinations: dict[str, Destination],
        here: list[Model | SleepingModel],
        elsewhere: list[RemoteModel],
        split: TrafficSplit | None,
    ) -> None:
        """Put a SequenceRoute before each name under which several models may have a sequence open."""
        for name in (self.aliases.keys() | self._old_aliases) - {*DEFAULT_NAMES}:
            destinations[name] = SequenceRoute(here, self._fresh(name, destinations))
        for name in DEFAULT_NAMES:
            destinations[name] = SequenceRoute([*here, *elsewhere], self._fresh(name, destinations), split)
        for number, version in self.versions.items():
            if version.draining:
                name = str(number)
                destinations[name] = SequenceRoute(version.models, self._fresh(name, destinations))

    def _fresh(self, name: str, destinations: dict[str, Destination]) -> Callable[[InFlightRequest], None]:
        """Return the function that submits a request for a name if it belongs to no open sequence. The returned function raises
        an error if no model has the name."""
        found = destinations.get(name)
        return found.submit if found is not None else lambda request: self._resolve_unusual(name).submit(request)


class MalformedVersion(ServingError):
    """Raised when the version in a request is neither a number nor an alias of the model."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


def parse_requested_version(version: str, aliases: Collection[str] = ()) -> int:
    """Return the number of a version as a client wrote it. Raises INVALID_ARG for other text. aliases: for the message."""
    if not version.isdecimal() or len(version) > 18:
        known = f" or an alias: {', '.join(sorted(aliases))}" if aliases else ""
        raise MalformedVersion(
            f"failed to get model version from specified version string '{version[:40]}': expected a positive number{known}"
        )
    return int(version)


def check_requested_version(version: str) -> None:
    """Raise INVALID_ARG for a text that can be neither a version number nor an alias."""
    if not is_alias(version):
        parse_requested_version(version)


def _keeps_sequences(config: ModelConfig) -> bool:
    """Return whether a request to this model may continue a sequence that an earlier request began."""
    return config.HasField("sequence_batching") and not config.sequence_batching.iterative_sequence


def _default_of(sources: list[VersionSource], aliases: Mapping[str, int]) -> int:
    """Return the version that answers a request without a version if there is no rollout."""
    return aliases.get(DEFAULT_ALIAS, sources[-1].version)


def _release_of(source: VersionSource) -> int | None:
    """Return the release of a configuration that is not checked yet, or None if it is invalid."""
    try:
        return release_of(source.config)
    except InvalidConfig:
        return None


def _reasons(failures: dict[int, ServingError]) -> str:
    """Return why versions failed, in the words of Triton's message. A reason that several versions share appears once."""
    return "; ".join(
        f"version {', '.join(numbers)} {'is' if len(numbers) == 1 else 'are'} at UNAVAILABLE state: {reason}"
        for reason, numbers in _by_reason(failures).items()
    )


def _plain_reasons(failures: dict[int, ServingError]) -> str:
    """Return why versions failed, without Triton's words. The versions are named only if their reasons differ."""
    reasons = _by_reason(failures)
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"version {', '.join(numbers)}: {reason}" for reason, numbers in reasons.items())


def _by_reason(failures: dict[int, ServingError]) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for version, error in sorted(failures.items()):
        versions.setdefault(str(error), []).append(str(version))
    return versions


def _http_status(failures: dict[int, ServingError]) -> int | None:
    """Return the HTTP status if a model's own code refused to load, or None if the load failed for another reason."""
    return next((error.status for error in failures.values() if isinstance(error, BackendFailed)), None)


def _code(failures: dict[int, ServingError]) -> Code:
    """Return the error code that all versions share. If the codes differ, return INTERNAL if it is among them, else
    INVALID_ARG, as in Triton."""
    codes = {error.code for error in failures.values()}
    if len(codes) > 1 and Code.INTERNAL not in codes:
        return Code.INVALID_ARG
    return codes.pop() if len(codes) == 1 else Code.INTERNAL
