"""The versions of one model: UNAVAILABLE, LOADING, READY, UNLOADING, each with the reason.

A load is of all versions that the policy selects, and succeeds or fails as a whole, as in Triton: what is new is built beside
what serves and warmed; when all of it is there, each version switches one reference and lets the old one finish its requests.
When one version does not load, none of the new ones serves, and what served before keeps serving.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.in_place import same_build
from repository.core.condition import Condition
from serving.backends.base.backend import ModelSpec
from serving.core.devices import model_filename
from serving.core.errors import Code, ServingError, invalid, not_found, unavailable, unexpected
from serving.core.model_identifier import ModelIdentifier
from serving.models.model import Model
from serving.models.residency import AWAKE, EVICTABLE, ON_DEMAND, PINNED, Residency, ResidencyKeeper, residency_of
from serving.models.sleeping_model import ASLEEP, SleepingModel
from serving.repositories.model_source import VersionSource
from serving.resources.memory import FILES, NOTHING, MemoryUse, files_bytes
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import ModelStatistics, PhaseHistograms

log = logging.getLogger(__name__)

# Completes a version's configuration from its model file; runs on a worker thread.
Complete = Callable[[VersionSource], ModelConfig]

T = TypeVar("T", VersionSource, "Change")
R = TypeVar("R")

KEEPS_SERVING = "the last reload failed, what was loaded before keeps serving: "


class State(Enum):
    """Triton's model states, as the repository index shows them."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"


@dataclass(slots=True, eq=False)
class VersionEntry:
    """`model` is what serves, or will on its first request; it stays while a newer one is being built."""

    statistics: ModelStatistics
    state: State = State.UNAVAILABLE
    reason: str = ""
    retired: bool = False  # taken out of service; nothing is wrong with that
    failed: bool = False  # its last load failed, whatever serves
    model: Model | SleepingModel | None = None
    source: VersionSource | None = None  # of `model`
    incoming: Model | SleepingModel | None = None  # built, until every version of its load is
    draining: list[Model | SleepingModel] = field(default_factory=list)
    residency: Residency = AWAKE
    used: tuple[int, float] = (0, 0.0)  # requests so far, and when that number was first seen (monotonic)
    held: MemoryUse | None = None  # before it was put to sleep

    @property
    def asleep(self) -> bool:
        return isinstance(self.model, SleepingModel)

    @property
    def condition(self) -> Condition:
        if self.state is State.READY and isinstance(self.model, Model) and not self.model.available:
            return Condition.SILENT
        if self.state is not State.UNAVAILABLE:
            return Condition.NONE
        return Condition.ASLEEP if self.asleep else Condition.UNLOADED if self.retired else Condition.NONE

    @property
    def models(self) -> list[Model | SleepingModel]:
        """All that may have requests under way."""
        return [*self.draining, self.model] if self.model else self.draining

    @property
    def memory(self) -> MemoryUse:
        models = [*self.models, self.incoming] if self.incoming else self.models
        return sum((model.memory for model in models), NOTHING)


@dataclass(frozen=True, slots=True)
class Change:
    """What a load makes of one version; `config` is its completed configuration, None where nothing changed."""

    entry: VersionEntry
    source: VersionSource
    config: ModelConfig | None

    @property
    def in_place(self) -> bool:
        """Whether what serves takes the new configuration as it is."""
        entry, config = self.entry, self.config
        if entry.model is None or entry.source is None or config is None or entry.source.files != self.source.files:
            return False
        must_wake = entry.asleep and residency_of(config).mode == PINNED
        return same_build(entry.model.config, config) and not must_wake


class ModelLifecycle:
    """All versions of one model that are or were loaded."""

    def __init__(
        self,
        identifier: ModelIdentifier,
        runtime: Runtime,
        complete: Complete,
        keeper: ResidencyKeeper,
    ) -> None:
        self.identifier = identifier
        self.name = identifier.name
        self.lock = asyncio.Lock()
        self.versions: dict[int, VersionEntry] = {}
        self.default: Model | SleepingModel | None = None  # the highest version that takes requests
        self.wanted = False  # asked for and not unloaded since (KnownModels says so): strict readiness waits for it
        self.error = ""  # why the last load failed before any version could be named
        self._runtime = runtime
        self._loop = runtime.loop
        self._executor = runtime.executor
        self._complete = complete
        self._keeper = keeper
        self._drains: set[asyncio.Task[None]] = set()
        keeper.add(self)

    # -- requests --------------------------------------------------------------------------------------------------
    def resolve(self, version: str) -> Model | SleepingModel:
        """The model that answers for a version as asked ("" or "-1": the highest that is ready)."""
        if self.default is None and not self.wanted and not self.versions:
            raise not_found(f"Request for unknown model: '{self.name}' is not found{self._because()}")
        if version in ("", "-1"):
            if self.default is None:
                raise unavailable(
                    f"Request for unknown model: '{self.name}' has no available versions{self._because()}"
                )
            return self.default
        number = parse_requested_version(version)
        entry = self.versions.get(number)
        if entry is None:
            raise not_found(f"Request for unknown model: '{self.name}' version {number} is not found")
        if entry.model is None:
            reason = f": {entry.reason}" if entry.reason else ""
            raise unavailable(
                f"Request for unknown model: '{self.name}' version {number} is not at ready state{reason}"
            )
        return entry.model

    def busy(self) -> bool:
        """Whether a request is under way on any version."""
        return any(model.in_flight for entry in self.versions.values() for model in entry.models)

    def ready_versions(self) -> list[int]:
        return sorted(version for version, entry in self.versions.items() if entry.model is not None)

    def failed_reload(self, entry: VersionEntry) -> str:
        """Why the last load of this serving version failed before its files were looked at; "" where it did not."""
        return KEEPS_SERVING + self.error if self.error and entry.model is not None else ""

    def _because(self) -> str:
        reasons = [self.error, *(entry.reason for entry in self.versions.values())]
        return next((f": {reason}" for reason in reasons if reason), "")

    # -- loading ---------------------------------------------------------------------------------------------------
    async def load(self, sources: list[VersionSource]) -> None:
        """Bring exactly these versions to READY; on failure what serves stays, and the reasons are raised together."""
        self.error = ""
        changes, failures = await self._each(sources, self._planned)
        if not failures:
            _, failures = await self._each(changes, self._build_beside)
        if not failures:
            _, failures = await self._each(changes, self._reconfigure)
        if failures:
            raise self._abandoned([source.version for source in sources], failures)
        for change in changes:
            self._commit(change)
        for version in self.versions.keys() - {source.version for source in sources}:
            self._retire(version, "replaced under the version policy")
        self._choose_default()

    async def _each(
        self, things: list[T], work: Callable[[T], Coroutine[Any, Any, R]]
    ) -> tuple[list[R], dict[int, BaseException]]:
        """The results of work on all versions side by side, and by version what was raised."""
        results = await asyncio.gather(*(work(thing) for thing in things), return_exceptions=True)
        sources = [thing.source if isinstance(thing, Change) else thing for thing in things]
        failures: dict[int, BaseException] = {
            source.version: unexpected(result, f"loading '{self.name}'")
            for source, result in zip(sources, results, strict=True)
            if isinstance(result, BaseException)
        }
        return [result for result in results if not isinstance(result, BaseException)], failures

    async def _planned(self, source: VersionSource) -> Change:
        """Complete the configuration, which finds most of what is wrong with a version before any is built."""
        entry = self.versions.get(source.version)
        if entry is None:
            entry = self.versions[source.version] = VersionEntry(self._statistics(source.version))
        if entry.model is not None and entry.source is not None and entry.source.key == source.key:
            return Change(entry, source, None)
        if entry.model is None:
            entry.state, entry.retired = State.LOADING, False
            entry.statistics = self._statistics(source.version)  # what is unloaded and drains has the old ones
        return Change(entry, source, await self._loop.run_in_executor(self._executor, self._complete, source))

    async def _build_beside(self, change: Change) -> None:
        entry, config = change.entry, change.config
        if config is None or change.in_place:
            return
        spec = self._spec(change.source, config)
        needed = await self._needed(entry, spec)
        asleep = self._begins_asleep(entry, residency_of(config), needed)
        entry.incoming = self._sleeper(entry, spec) if asleep else await self._build(entry, spec, needed)

    async def _reconfigure(self, change: Change) -> None:
        model = change.entry.model
        if change.entry.incoming is None and change.config is not None and model is not None:
            await model.reconfigure(change.config)

    def _commit(self, change: Change) -> None:
        entry = change.entry
        if change.config is not None:
            entry.source, entry.residency = change.source, residency_of(change.config)
        if entry.incoming is not None:
            old, entry.model, entry.incoming = entry.model, entry.incoming, None
            if old is not None:
                self._drain(entry, old)
        if entry.model is not None:  # the server may shut down meanwhile
            self._settle(entry)

    def _abandoned(self, versions: list[int], failures: dict[int, BaseException]) -> ServingError:
        """Let go of what was built in vain. The error of the load; each version says why it does not serve."""
        error = ServingError(_code(failures), f"load failed for model '{self.name}': {_reasons(failures)}")
        others = f"not loaded, because {_reasons(failures)}"
        for version in versions:
            entry = self.versions[version]
            built, entry.incoming = entry.incoming, None
            reason = str(failures[version]) if version in failures else others
            if entry.model is not None:
                self._settle(entry, KEEPS_SERVING + reason if built or version in failures else "")
            else:
                entry.state, entry.reason = State.UNLOADING if built else State.UNAVAILABLE, reason
                entry.failed = True
            if built is not None:
                self._drain(entry, built)
        return error

    def _settle(self, entry: VersionEntry, reason: str = "") -> None:
        """State and reason of an entry that takes requests. `reason`: why its last load failed, where it did."""
        entry.failed, entry.retired = bool(reason), False
        if entry.asleep:
            entry.state, entry.reason = State.UNAVAILABLE, "; ".join(filter(None, (ASLEEP, reason)))
        else:
            entry.state, entry.reason = State.READY, reason
        self._keeper.watch(entry)

    async def _build(self, entry: VersionEntry, spec: ModelSpec, needed: MemoryUse) -> Model:
        async with self._keeper.room_for(needed, self.name):
            model = Model(spec, entry.statistics, self._runtime)
            began = self._loop.time()
            await model.load()
            entry.statistics.load_s = self._loop.time() - began
            return model

    def _statistics(self, version: int) -> ModelStatistics:
        runtime, namespace = self._runtime, self.identifier.namespace
        phases = PhaseHistograms() if runtime.summaries else None
        return ModelStatistics(self.name, version, namespace, phases=phases, first_responses=runtime.first_responses)

    # -- residency -------------------------------------------------------------------------------------------------
    def _begins_asleep(self, entry: VersionEntry, residency: Residency, needed: MemoryUse) -> bool:
        """What serves is replaced by what serves; anything else waits for a request, where it may."""
        if residency.mode == PINNED or (entry.model is not None and not entry.asleep):
            return False
        crowded = residency.mode == EVICTABLE and not self._keeper.has_room(needed)
        return residency.mode == ON_DEMAND or entry.asleep or crowded

    async def _needed(self, entry: VersionEntry, spec: ModelSpec) -> MemoryUse:
        """What the model held the last time; else the size of its files, on each GPU that it may go to as well."""
        if entry.held is not None:
            return entry.held
        size = await self._loop.run_in_executor(self._executor, files_bytes, spec.version_dir)
        gpus = sorted({gpu for group in spec.config.instance_group for gpu in group.gpus})
        return MemoryUse(size, tuple((gpu, size) for gpu in gpus), FILES)

    def _sleeper(self, entry: VersionEntry, spec: ModelSpec) -> SleepingModel:
        labels = entry.model.labels if entry.model is not None else {}
        return SleepingModel(spec, entry.statistics, lambda sleeper: self._wake(entry, sleeper), labels)

    def sleep(self, entry: VersionEntry) -> None:
        """Let go of a version's weights; its next request brings them back."""
        model = entry.model
        assert isinstance(model, Model)
        entry.held = model.memory
        entry.model = self._sleeper(entry, dataclasses.replace(model.spec, config=model.config))
        self._settle(entry)
        self._choose_default()
        self._drain(entry, model)

    async def _wake(self, entry: VersionEntry, sleeper: SleepingModel) -> None:
        """Load for the first request. Where a reload or an unload came first, its outcome is what the requests get."""
        async with self.lock:
            target = entry.model
            if target is sleeper:
                target = await self._awaken(entry, sleeper)
            if target is None:
                raise unavailable("it was unloaded")
            sleeper.hand_over(target)

    async def _awaken(self, entry: VersionEntry, sleeper: SleepingModel) -> Model:
        assert entry.source is not None
        entry.state, entry.reason = State.LOADING, ""
        try:
            # Completed anew: the files may have changed since.
            config = await self._loop.run_in_executor(self._executor, self._complete, entry.source)
            spec = self._spec(entry.source, config)
            model = await self._build(entry, spec, await self._needed(entry, spec))
        except Exception as error:
            failure = unexpected(error, f"loading '{self.name}'")
            log.warning("'%s' could not be loaded for its first request: %s", self.name, failure.message)
            if entry.model is sleeper:
                self._settle(entry, f"the last load failed: {failure.message}")
            raise failure from None
        log.info("loaded '%s' version %d for a request", self.name, entry.source.version)
        if entry.model is sleeper:
            entry.model = model
            self._settle(entry)
            self._choose_default()
        else:  # the server shuts down: finish what was accepted
            self._drain(entry, model)
        return model

    def _spec(self, source: VersionSource, config: ModelConfig) -> ModelSpec:
        version_dir = source.model_dir / str(source.version)
        return ModelSpec(
            name=self.name,
            version=source.version,
            config=config,
            version_dir=version_dir,
            model_file=version_dir / model_filename(config),
            strict_devices=self._runtime.strict_devices,
            runtime=self._runtime,
        )

    # -- unloading -------------------------------------------------------------------------------------------------
    def unload(self) -> None:
        """Take no new requests; what is under way finishes."""
        for version, entry in self.versions.items():
            self._retire(version, "unloaded")
            if entry.incoming is not None:  # a shutdown does not wait for loads
                self._drain(entry, entry.incoming)
                entry.incoming = None
        self._choose_default()

    async def drained(self) -> None:
        """Returns when nothing of this model is being freed any more."""
        while self._drains:
            await asyncio.gather(*self._drains)

    def _retire(self, version: int, reason: str) -> None:
        entry = self.versions[version]
        model, entry.model = entry.model, None
        entry.retired, entry.failed = True, False
        if model is not None:
            entry.state, entry.reason = State.UNLOADING, reason
            self._drain(entry, model)
        elif entry.state is not State.UNLOADING:
            entry.state, entry.reason = State.UNAVAILABLE, reason

    def _drain(self, entry: VersionEntry, model: Model | SleepingModel) -> None:
        entry.draining.append(model)
        task = self._loop.create_task(self._drain_and_free(entry, model))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain_and_free(self, entry: VersionEntry, model: Model | SleepingModel) -> None:
        try:
            await model.drain()
        except Exception:
            log.exception("model '%s' was not freed cleanly", self.name)
        entry.draining.remove(model)
        if entry.state is State.UNLOADING and not entry.draining:
            entry.state = State.UNAVAILABLE
            entry.statistics = self._statistics(entry.statistics.model_version)
        del model  # the last reference: what it held goes before memory is given back
        await self._runtime.memory_return.after_free(self._executor)

    def _choose_default(self) -> None:
        ready = self.ready_versions()
        self.default = self.versions[ready[-1]].model if ready else None


def parse_requested_version(version: str) -> int:
    """The number of a version as a client wrote it."""
    if not version.isdecimal() or len(version) > 18:
        raise invalid(
            f"failed to get model version from specified version string '{version[:40]}': expected a positive number"
        )
    return int(version)


def _reasons(failures: dict[int, BaseException]) -> str:
    """In the words of Triton's message; a reason that several versions share is told once."""
    versions: dict[str, list[str]] = {}
    for version, error in sorted(failures.items()):
        versions.setdefault(str(error), []).append(str(version))
    return "; ".join(
        f"version {', '.join(numbers)} {'is' if len(numbers) == 1 else 'are'} at UNAVAILABLE state: {reason}"
        for reason, numbers in versions.items()
    )


def _code(failures: dict[int, BaseException]) -> Code:
    """The one that all versions have; INVALID_ARG, as in Triton, where several are wrong in different ways."""
    codes = {error.code if isinstance(error, ServingError) else Code.INTERNAL for error in failures.values()}
    if len(codes) > 1 and Code.INTERNAL not in codes:
        return Code.INVALID_ARG
    return codes.pop() if len(codes) == 1 else Code.INTERNAL
