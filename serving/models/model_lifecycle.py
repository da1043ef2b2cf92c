"""The versions of one model: UNAVAILABLE, LOADING, READY, UNLOADING, each with the reason.

A load is of all versions that the policy selects, and succeeds or fails as a whole, as in Triton: what is new is built beside
what serves and warmed; when all of it is there, each version switches one reference and lets the old one finish its requests.
When one version does not load, none of the new ones serves, and what served before keeps serving.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.release import DEFAULT_ALIAS, aliases_of, is_alias, release_of
from repository.config.residency import residency_of
from serving.core.errors import Code, ServingError, invalid, not_found, unavailable, unexpected
from serving.core.log_context import about
from serving.core.model_identifier import ModelIdentifier
from serving.models.model import Model
from serving.models.model_builder import EffectiveConfig, ModelBuilder
from serving.models.model_version import KEEPS_SERVING, ModelVersion, State
from serving.models.residency import ResidencyManager
from serving.models.sleeping_model import SleepingModel
from serving.repositories.model_source import VersionSource
from serving.resources.runtime import Runtime

log = logging.getLogger(__name__)

T = TypeVar("T", VersionSource, "Change")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Change:
    """What a load makes of one version; `config` is the configuration to serve with, None where nothing changed."""

    version: ModelVersion
    source: VersionSource
    config: ModelConfig | None


class ModelLifecycle:
    """All versions of one model that are or were loaded. Runs on the event loop's thread."""

    def __init__(
        self,
        identifier: ModelIdentifier,
        runtime: Runtime,
        effective_config: EffectiveConfig,
        residency: ResidencyManager,
    ) -> None:
        self.identifier = identifier
        self.name = identifier.name
        self.lock = asyncio.Lock()  # held while the model is loaded or unloaded
        self.versions: dict[int, ModelVersion] = {}
        self.default: Model | SleepingModel | None = None  # what answers where a request names no version
        self.aliases: dict[str, int] = {}  # as the configuration that serves has them
        self.requested = False  # a load was asked for, and no unload since: strict readiness waits for it
        self.error = ""  # why the last load failed before any version could be named
        self._runtime = runtime
        self._loop = runtime.loop
        self._residency = residency
        self._builder = ModelBuilder(identifier, runtime, effective_config, residency, self._wake)
        self._drains: set[asyncio.Task[None]] = set()
        self._answering: dict[str, Model | SleepingModel] = {}  # by each number and alias, as a client writes it
        residency.add(self)

    # -- requests --------------------------------------------------------------------------------------------------
    def resolve(self, version: str) -> Model | SleepingModel:
        """Return the model that answers for a version as a client wrote it: a number, an alias, or "" or "-1" for none.

        NOT_FOUND for a model or version that is unknown, UNAVAILABLE for one that does not serve, INVALID_ARG for what is
        neither a number nor an alias.
        """
        found = self._answering.get(version)
        return found if found is not None else self._resolve_unusual(version)

    def _resolve_unusual(self, version: str) -> Model | SleepingModel:
        """Return what a number with leading zeros means; raise why all else has no model."""
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
        """Whether a request is under way on any version."""
        return any(model.in_flight for version in self.versions.values() for model in version.models)

    def ready_versions(self) -> list[int]:
        return sorted(number for number, version in self.versions.items() if version.model is not None)

    def aliases_of(self, number: int) -> tuple[str, ...]:
        """Return the names by which a version answers."""
        serves = self.versions[number].model is not None
        return tuple(sorted(name for name, version in self.aliases.items() if version == number and serves))

    def failed_reload(self, version: ModelVersion) -> str:
        """Return why the last load of a serving version failed before its files were read; "" where it did not."""
        return KEEPS_SERVING + self.error if self.error and version.model is not None else ""

    def _because(self) -> str:
        reasons = [self.error, *(version.reason for version in self.versions.values())]
        return next((f": {reason}" for reason in reasons if reason), "")

    # -- loading ---------------------------------------------------------------------------------------------------
    async def load(self, sources: list[VersionSource]) -> None:
        """Bring exactly these versions to READY; on failure what serves stays, and the reasons are raised together."""
        self.error = ""
        changes, failures = await self._each(sources, self._plan)
        if not failures:
            _, failures = await self._each(changes, self._build_incoming)
        if not failures:
            failures = await self._reconfigure_all(changes)
        if failures:
            raise self._roll_back([source.version for source in sources], failures)
        for change in changes:
            self._commit(change)
        for number in self.versions.keys() - {source.version for source in sources}:
            self._retire(self.versions[number], "replaced under the version policy")
        self.aliases = aliases_of(sources[0].config)
        self._choose_answering()

    async def _each(
        self, things: list[T], work: Callable[[T], Coroutine[None, None, R]]
    ) -> tuple[list[R], dict[int, ServingError]]:
        """Work on all versions side by side. Return the results, and by version what was raised."""
        results = await asyncio.gather(*(work(thing) for thing in things), return_exceptions=True)
        sources = [thing.source if isinstance(thing, Change) else thing for thing in things]
        failures = {
            source.version: unexpected(result, f"loading '{self.name}'")
            for source, result in zip(sources, results, strict=True)
            if isinstance(result, BaseException)
        }
        return [result for result in results if not isinstance(result, BaseException)], failures

    async def _plan(self, source: VersionSource) -> Change:
        """Complete the configuration, which finds most of what is wrong with a version before any is built."""
        version = self.versions.get(source.version)
        if version is None:
            version = self.versions[source.version] = ModelVersion(self._builder.statistics(source.version))
        if version.model is not None and version.source is not None and version.source.key == source.key:
            return Change(version, source, None)
        if version.model is None:
            version.begin_load(self._builder.statistics(source.version))
        return Change(version, source, await self._builder.effective_config(source))

    async def _build_incoming(self, change: Change) -> None:
        version, source, config = change.version, change.source, change.config
        if config is not None and not version.takes_in_place(source, config):
            version.incoming = await self._builder.build(version, source, config)

    async def _reconfigure_all(self, changes: list[Change]) -> dict[int, ServingError]:
        """Let what serves and stays take its new configuration. Where one version does not, all have their old one again."""
        before = {change.source.version: model.config for change in changes if (model := change.version.model)}
        _, failures = await self._each(changes, self._reconfigure)
        if failures:
            undone = [dataclasses.replace(change, config=before.get(change.source.version)) for change in changes]
            await self._each(undone, self._reconfigure)
        return failures

    async def _reconfigure(self, change: Change) -> None:
        model, config = change.version.model, change.config
        if change.version.incoming is None and config is not None and model is not None and model.config is not config:
            await model.reconfigure(config)

    def _commit(self, change: Change) -> None:
        version = change.version
        if change.config is not None:
            version.source, version.residency = change.source, residency_of(change.config)
            version.release = release_of(change.config)
        if version.incoming is not None:
            old, version.model, version.incoming = version.model, version.incoming, None
            if old is not None:
                self._drain(version, old)
        if version.model is not None:  # the server may shut down meanwhile
            self._serve(version)

    def _roll_back(self, numbers: list[int], failures: dict[int, ServingError]) -> ServingError:
        """Let go of what was built in vain. Return the error of the load; each version says why it does not serve."""
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
    def sleep(self, version: ModelVersion) -> None:
        """Let go of a version's weights; its next request brings them back."""
        model = version.model
        assert isinstance(model, Model)
        version.memory_awake = model.memory
        version.model = self._builder.asleep_again(version, model)
        self._serve(version)
        self._choose_answering()
        self._drain(version, model)

    async def _wake(self, version: ModelVersion, sleeping: SleepingModel) -> None:
        """Load for the first request. Where a reload or an unload came first, its outcome is what the requests get."""
        async with self.lock:
            target = version.model
            if target is sleeping:
                target = await self._load_awake(version, sleeping)
            if target is None:
                raise unavailable("it was unloaded")
            sleeping.hand_over(target)

    async def _load_awake(self, version: ModelVersion, sleeping: SleepingModel) -> Model:
        source = version.source
        assert source is not None
        with about(self.name, source.version):
            return await self._load_for_request(version, sleeping, source)

    async def _load_for_request(self, version: ModelVersion, sleeping: SleepingModel, source: VersionSource) -> Model:
        version.state, version.reason = State.LOADING, ""
        try:
            # Completed anew: the files may have changed since.
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
            self._choose_answering()
        else:  # the server shuts down: finish what was accepted
            self._drain(version, model)
        return model

    # -- unloading -------------------------------------------------------------------------------------------------
    def unload(self) -> None:
        """Take no new requests; what is under way finishes."""
        for version in self.versions.values():
            self._retire(version, "unloaded")
            if version.incoming is not None:  # a shutdown does not wait for loads
                self._drain(version, version.incoming)
                version.incoming = None
        self._choose_answering()

    async def drained(self) -> None:
        """Return when nothing of this model is being freed any more."""
        while self._drains:
            await asyncio.gather(*self._drains)

    def _retire(self, version: ModelVersion, reason: str) -> None:
        model = version.retire(reason)
        if model is not None:
            self._drain(version, model)

    def _drain(self, version: ModelVersion, model: Model | SleepingModel) -> None:
        version.draining.append(model)
        task = self._loop.create_task(self._drain_and_free(version, model))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain_and_free(self, version: ModelVersion, model: Model | SleepingModel) -> None:
        try:
            await model.drain()
        except Exception:
            log.exception("model '%s' was not freed cleanly", self.name)
        version.draining.remove(model)
        if version.state is State.UNLOADING and not version.draining:
            version.state = State.UNAVAILABLE
            version.statistics = self._builder.statistics(version.statistics.model_version)
        del model  # the last reference: what it held goes before memory is given back
        await self._runtime.memory_return.after_free(self._runtime.executor)

    def _choose_answering(self) -> None:
        """Settle what each name of a version means from here on; that of none is `default`'s, else the highest's."""
        serving = {number: version.model for number, version in sorted(self.versions.items()) if version.model}
        answering = {str(number): model for number, model in serving.items()}
        answering |= {name: serving[number] for name, number in self.aliases.items() if number in serving}
        self.default = answering.get(DEFAULT_ALIAS) or next(reversed(serving.values()), None)
        if self.default is not None:
            answering[""] = answering["-1"] = self.default
        self._answering = answering


def parse_requested_version(version: str, aliases: Collection[str] = ()) -> int:
    """Return the number of a version as a client wrote it; INVALID_ARG for anything else. aliases: those that there are."""
    if not version.isdecimal() or len(version) > 18:
        known = f" or an alias: {', '.join(sorted(aliases))}" if aliases else ""
        raise invalid(
            f"failed to get model version from specified version string '{version[:40]}': expected a positive number{known}"
        )
    return int(version)


def check_requested_version(version: str) -> None:
    """Raise INVALID_ARG for what can be neither a version's number nor an alias."""
    if not is_alias(version):
        parse_requested_version(version)


def _reasons(failures: dict[int, ServingError]) -> str:
    """Return why versions failed, in the words of Triton's message; a reason that several versions share stands once."""
    versions: dict[str, list[str]] = {}
    for version, error in sorted(failures.items()):
        versions.setdefault(str(error), []).append(str(version))
    return "; ".join(
        f"version {', '.join(numbers)} {'is' if len(numbers) == 1 else 'are'} at UNAVAILABLE state: {reason}"
        for reason, numbers in versions.items()
    )


def _code(failures: dict[int, ServingError]) -> Code:
    """Return the code that all versions have; INVALID_ARG, as in Triton, where several are wrong in different ways."""
    codes = {error.code for error in failures.values()}
    if len(codes) > 1 and Code.INTERNAL not in codes:
        return Code.INVALID_ARG
    return codes.pop() if len(codes) == 1 else Code.INTERNAL
