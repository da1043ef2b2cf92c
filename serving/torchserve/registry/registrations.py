"""The models that are registered through TorchServe's APIs: register, scale, set the default version, unregister.

A version is registered with a number of workers: the instances of the model in this server. Requests to a version without
workers are refused. Messages follow TorchServe 0.12: docs/management_api.md, and its answers.

Runs on the event loop's thread. Files and networks are used on other threads. Changes to one model are made one after another.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.errors import RepositoryError
from repository.core.layout import check_name
from repository.torchserve import model_archive
from repository.torchserve.archive_names import default_name, hide_secrets, is_address, named
from repository.torchserve.model_archive import Manifest, ModelSettings
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.version_settings import (
    MAX_WORKERS,
    Registering,
    Settings,
    overlay,
    read_workers,
    workers_in_archive,
)
from serving.core.devices import gpu_count
from serving.core.errors import ServingError, unavailable
from serving.models.load_report import LoadStopped
from serving.resources.network_thread import NetworkThreads
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.errors import (
    TorchServeError,
    WorkersStarting,
    bad_request,
    conflict,
    model_not_found,
    no_worker,
    server_error,
    version_not_found,
)
from serving.torchserve.registry.model_store import ModelStore, StoredArchive
from serving.torchserve.registry.registered_files import RegisteredFiles

log = logging.getLogger(__name__)

MAX_FETCHES = 4  # the most archives that are fetched at the same time
RUNTIMES = ("python", "python3", "LSP")
RETRIED_S = 300.0  # how long failing workers count as healthy if maxRetryTimeoutInSec is not set
LONGEST_PAUSE_S = 60.0  # the longest pause between two attempts to start workers that fail


class Outcome(NamedTuple):
    """The answer of a management call: an HTTP status and a sentence."""

    code: int
    text: str


@dataclass(slots=True, eq=False)
class Registration:
    """One version of a model. number: the version's number in the repository. workers: how many workers it should have.
    serving: how many it has."""

    name: str
    version: str
    number: int
    url: str
    archive: StoredArchive
    manifest: Manifest
    archive_settings: ModelSettings  # the settings in the archive
    settings: Settings
    min_workers: int = 0
    max_workers: int = 0
    workers: int = 0
    serving: int = 0
    workflow: bool = False  # whether it is a node of a workflow: snapshots leave such nodes out
    failing_since: float | None = None  # when its first workers failed to start (monotonic), or None once they run
    starting: asyncio.Event | None = None  # set when the first workers run or have failed
    retrying: "asyncio.Task[None] | None" = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class RegisteredModel:
    """The versions of a model in the order of their registration, and the default one."""

    name: str
    versions: dict[str, Registration] = field(default_factory=dict)
    default: str = ""
    at_startup: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    changing: Registration | None = None  # the version whose workers are being started or stopped

    @property
    def default_version(self) -> Registration:
        return self.versions[self.default]


class Registrations:
    """The registered models of one server."""

    def __init__(
        self,
        server: InferenceServer,
        options: TorchServeOptions,
        folder: Path,
    ) -> None:
        """folder: the server's model repository for the registered models.

        Raises UNAVAILABLE if an archive in the snapshot is not in the store, because the next snapshot would lack its model.
        """
        assert options.model_store is not None
        self.models: dict[str, RegisteredModel] = {}  # the models that have versions
        self.reserved: Container[str] = ()  # names of workflows
        # All models, including models without versions that are being changed.
        self._known: WeakValueDictionary[str, RegisteredModel] = WeakValueDictionary()
        self._without_workers: list[Registration] = []  # registered at start, not started yet
        self.store = ModelStore(options.model_store, options.allowed_urls)
        self.on_changed: Callable[[], Awaitable[None]] = _nobody_asks  # called when a snapshot would differ
        self._server = server
        self._options = options
        self._files = RegisteredFiles(folder)
        self._network = NetworkThreads(asyncio.get_running_loop(), MAX_FETCHES)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        for name, versions in (options.model_snapshot or {}).items():
            for version, snapshot in versions.items():
                refuse_missing(self.store, str(snapshot.get("marName") or ""), f"model '{name}' version {version}")

    # -- state ---------------------------------------------------------------------------------------------------------
    def find(self, name: str, version: str | None = None) -> Registration:
        """Return a version of a model (None: the default version). Raises TorchServeError if the version is not registered."""
        model = self.models.get(name)
        if model is None:
            raise model_not_found(name)
        found = model.versions.get(version or model.default)
        if found is None:
            raise version_not_found(name, version or "")
        return found

    def serving(self, name: str, version: str | None = None) -> Registration:
        """Return the version for a prediction. Raises WorkersStarting while workers start, and no_worker if there are none."""
        found = self.find(name, version)
        if not found.serving:
            refusal = no_worker(name, version)
            raise refusal if found.starting is None else WorkersStarting(refusal, found.starting)
        return found

    def healthy(self) -> bool:
        """Return whether the default version of each model has its minimum number of workers. A worker that is starting or
        restarting counts for as long as maxRetryTimeoutInSec."""
        return all(self._has_its_workers(model.default_version) for model in self.models.values())

    def _has_its_workers(self, one: Registration) -> bool:
        limit_s = one.archive_settings.whole.get("maxRetryTimeoutInSec")
        patience_s = limit_s if isinstance(limit_s, int) else RETRIED_S
        if not one.serving:
            return one.failing_since is None or time.monotonic() - one.failing_since <= patience_s
        try:
            down_s = self._server.downtimes_s(one.name, str(one.number))
        except ServingError:  # the version is being changed
            return True
        return one.workers - sum(one_s > patience_s for one_s in down_s) >= one.min_workers

    # -- starting --------------------------------------------------------------------------------------------------
    async def register_wanted(self) -> None:
        """Register the models in config.properties, without workers. A model that fails is logged and skipped."""
        options = self._options
        wanted: list[tuple[str, str, Mapping[str, Any] | None]]
        if options.model_snapshot is not None:
            wanted = [
                (name, str(snapshot.get("marName") or ""), snapshot)
                for name, versions in options.model_snapshot.items()
                for snapshot in versions.values()
            ]
        else:
            texts = (
                await asyncio.to_thread(self.store.names)
                if options.load_models == ("all",)
                else list(options.load_models)
            )
            wanted = [(name, url, None) for name, url in map(named, texts) if url]
        for name, url, snapshot in wanted:
            log.info("registering '%s'", hide_secrets(url))
            try:
                self._without_workers.append(await self._register_at_start(name, url, snapshot))
            except (ServingError, RepositoryError) as error:
                log.warning("'%s' is passed over: %s", hide_secrets(url), error.message.replace(url, hide_secrets(url)))

    async def start_workers(self) -> None:
        """Start the workers of the models that were registered at start."""
        registered, self._without_workers = self._without_workers, []
        await asyncio.gather(*(self._start_workers(one) for one in registered))

    async def _register_at_start(self, name: str, url: str, snapshot: Mapping[str, Any] | None) -> Registration:
        """snapshot: the version's entry in a snapshot, which has all of its settings, or None without a snapshot."""
        handler = str(snapshot.get("handler") or "") if snapshot is not None else ""
        asked = Registering(url=url, model_name=name, handler=handler)
        found = await self._register(asked, fallback_name=default_name(url), snapshot=snapshot)
        self.models[found.name].at_startup = snapshot is None
        if snapshot is not None:
            wanted = read_workers(snapshot.get("minWorkers"), 1, 0), read_workers(snapshot.get("maxWorkers"), 1, 0)
            if snapshot.get("defaultVersion") is True:
                self.models[found.name].default = found.version
        else:
            wanted = self._workers_at_start(found)
        found.min_workers, found.max_workers = wanted[0], max(wanted)
        found.workers = found.min_workers
        if found.workers:
            found.starting = asyncio.Event()
        return found

    def _workers_at_start(self, found: Registration) -> tuple[int, int]:
        in_archive = workers_in_archive(found.archive_settings)
        if in_archive is not None:
            return in_archive
        configured = self._options.models.get(found.name, {}).get(found.version, {})
        workers = self._options.default_workers_per_model or self._gpus() or _cores()
        return read_workers(configured.get("minWorkers"), workers), read_workers(configured.get("maxWorkers"), workers)

    async def _start_workers(self, found: Registration) -> None:
        """Start the first workers of a version. If the workers fail, retry until they run or the version changes."""
        if found.workers:
            try:
                async with self._locked(found) as model:
                    await self._apply(model, found)
            except ServingError as error:
                log.warning("the workers of '%s' version %s failed: %s", found.name, found.version, error.message)
                self._retry(found)

    def _retry(self, found: Registration) -> None:
        found.failing_since = time.monotonic()
        found.retrying = self._task(self._try_again(found))

    async def _try_again(self, found: Registration) -> None:
        pause_s = 1.0
        while True:
            await asyncio.sleep(pause_s)
            if not self._is_registered(found) or found.serving or self._closing:
                return
            try:
                async with self._locked(found) as model:
                    if found.workers and not found.serving:  # the version was not scaled meanwhile
                        await self._apply(model, found)
                return
            except ServingError as error:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                log.warning(
                    "the workers of '%s' version %s failed again, the next try is in %g s: %s",
                    found.name,
                    found.version,
                    pause_s,
                    error.message,
                )

    # -- registering -----------------------------------------------------------------------------------------------
    async def register(self, asked: Registering) -> Outcome:
        """Register a version, and start its workers. If the workers fail, remove the version and raise TorchServeError."""
        if asked.url is None:
            raise bad_request("Parameter url is required.")
        if asked.runtime and asked.runtime not in RUNTIMES:
            raise bad_request(f"Invalid RuntimeType value: {asked.runtime}")
        initial = asked.initial_workers
        if initial is None:
            initial = self._options.default_workers_per_model
        _refuse_too_many(initial)
        # Continues if the client's request is cancelled, because a version is registered as a whole or not at all.
        return await asyncio.shield(self._task(self._register_with_workers(asked, initial)))

    async def register_node(self, asked: Registering, workers: int, archive: Path | None) -> None:
        """Register a node of a workflow, and start its workers. Raises TorchServeError if the workers fail. archive: the
        archive of a function, which has no url."""
        found = await self._register(asked, archive=archive)
        found.workflow = True
        found.min_workers, found.max_workers = workers_in_archive(found.archive_settings) or (workers, workers)
        found.workers = found.min_workers
        await self._start_or_remove(found)

    async def _register_with_workers(self, asked: Registering, initial: int) -> Outcome:
        found = await self._register(asked)
        in_archive = workers_in_archive(found.archive_settings)
        if initial <= 0 and in_archive is None:
            await self.on_changed()
            return Outcome(
                200,
                f'Model "{found.name}" Version: {found.version} registered with 0 initial workers. Use scale workers API to '
                "add workers for the model.",
            )
        found.min_workers, found.max_workers = in_archive or (initial, initial)
        found.workers = found.min_workers
        if not asked.synchronous:
            self._task(self._start_and_tell(found))
            return Outcome(202, "Processing worker updates...")
        await self._start_or_remove(found)
        await self.on_changed()
        text = f'Model "{found.name}" Version: {found.version} registered with {found.min_workers} initial workers'
        return Outcome(200, text)

    async def _start_or_remove(self, found: Registration) -> None:
        """Start a version's first workers. If the workers fail, unregister the version and raise TorchServeError."""
        try:
            async with self._locked(found) as model:
                await self._apply(model, found)
        except ServingError as error:
            log.warning("the workers of '%s' version %s failed: %s", found.name, found.version, error.message)
            await self._remove(found)
            raise _workers_failed(found, found.version, error) from None

    async def _start_and_tell(self, found: Registration) -> None:
        await self._start_workers(found)
        await self.on_changed()

    async def _register(
        self,
        asked: Registering,
        fallback_name: str = "",
        snapshot: Mapping[str, Any] | None = None,
        archive: Path | None = None,
    ) -> Registration:
        """Add a version to the table and the repository, without workers. archive: used instead of a url."""
        url = asked.url or ""
        if archive is None:
            self.store.refuse_unless_allowed(url)
        run = self._network.run if is_address(url) else asyncio.to_thread
        stored, manifest, in_archive = await run(self._read, url, archive)
        kept = False
        try:
            name = asked.model_name or manifest.name or fallback_name
            if in_archive.unusable:
                message = "; ".join(in_archive.unusable.values())
                log.warning("model-config.yaml of '%s': %s; it counts as absent", hide_secrets(url), message)
            if not name:
                raise TorchServeError(400, "InvalidModelException", "Model name is not defined.")
            try:
                check_name(name)
            except RepositoryError as error:
                raise bad_request(f"Model name '{name[:80]}' cannot be used: {error.message}") from None
            if name in self.reserved:
                raise conflict(f"A workflow {name} is already registered.")
            version = manifest.version or "1.0"
            model = self._known.get(name) or self._known.setdefault(name, RegisteredModel(name))
            async with model.lock:
                if version in model.versions:
                    raise conflict(f"Model version {version} is already registered for model {name}")
                number = next(model.numbers)
                await asyncio.to_thread(self._files.add_version, name, number, stored.path)
                settings = Settings.of(asked, in_archive, manifest, self._options, name, version, snapshot)
                found = Registration(name, version, number, url, stored, manifest, in_archive, settings)
                if not model.versions:
                    model.default, model.at_startup = version, False
                model.versions[version] = found
                self.models[name] = model
                kept = True
        except RepositoryError as error:
            raise TorchServeError(400, "InvalidModelException", error.message) from None
        except OSError as error:
            log.warning("an archive could not be copied: %s", error.strerror or type(error).__name__)
            raise server_error(f"Failed to save model: {url}") from None
        finally:
            if archive is None and not kept:
                await asyncio.to_thread(self.store.release, stored)
        return found

    def _read(self, url: str, path: Path | None) -> tuple[StoredArchive, Manifest, ModelSettings]:
        """Find an archive, fetch it if necessary, and read its description. path: the path of the archive, if known."""
        archive = StoredArchive(path) if path is not None else self.store.find(url, model_archive.read_manifest)
        try:
            return archive, *model_archive.read_description(archive.path)
        except RepositoryError as error:
            if path is None:
                self.store.release(archive)
            raise TorchServeError(400, "InvalidModelException", error.message) from None

    # -- scaling ---------------------------------------------------------------------------------------------------
    async def scale(
        self, name: str, version: str | None, min_workers: int, max_workers: int, synchronous: bool
    ) -> Outcome:
        """Bring the number of a version's workers into these bounds. If new workers fail, the old workers stay, and
        TorchServeError is raised."""
        if min_workers < 0:
            raise bad_request("min_worker cannot be less than 0.")
        if max_workers < min_workers:
            raise bad_request("max_worker cannot be less than min_worker.")
        _refuse_too_many(max_workers)
        found = self.find(name, version)
        task = self._task(self._scale(found, version, min_workers, max_workers))
        if not synchronous:
            task.add_done_callback(_log_failure)
            return Outcome(202, "Processing worker updates...")
        await asyncio.shield(task)
        text = f"Workers scaled to {min_workers} for model: {name}"
        return Outcome(200, f"{text}, version: {version}" if version else text)

    async def _scale(self, found: Registration, version: str | None, min_workers: int, max_workers: int) -> None:
        if not min_workers:
            self._break_off(found)
        async with self._locked(found) as model:
            before = found.min_workers, found.max_workers, found.workers
            found.min_workers, found.max_workers = min_workers, max_workers
            # As in TorchServe, the number changes only if it is outside of the bounds.
            found.workers = 0 if not min_workers else min(max(found.serving, min_workers), max_workers)
            try:
                await self._apply(model, found)
            except ServingError as error:
                log.warning("the workers of '%s' version %s failed: %s", found.name, found.version, error.message)
                if before[2] == found.serving:
                    found.min_workers, found.max_workers, found.workers = before
                await self._rest(model)
                raise _workers_failed(found, version, error) from None
        await self.on_changed()

    # -- the default version ---------------------------------------------------------------------------------------
    async def set_default(self, name: str, version: str) -> Outcome:
        model = self.models.get(name)
        if model is None:
            raise model_not_found(name)
        async with model.lock:
            if version not in model.versions:
                raise TorchServeError(
                    404, "ModelVersionNotFoundException", f"Model version {version} does not exist for model {name}"
                )
            before, model.default = model.default, version
            try:
                await self._load(model)
            except ServingError as error:
                model.default = before
                log.warning("the default version of '%s' was not changed: %s", name, error.message)
                raise server_error(f"Failed to set the default version of model {name}") from None
        await self.on_changed()
        return Outcome(200, f'Default version successfully updated for model "{name}" to "{version}"')

    # -- unregistering ---------------------------------------------------------------------------------------------
    async def unregister(self, name: str, version: str | None) -> Outcome:
        """Remove a version (None: the default version) once its requests are answered."""
        found = self.find(name, version)
        model = self.models[name]
        if found is model.default_version and len(model.versions) > 1:
            raise TorchServeError(
                403, "InvalidModelVersionException", f"Cannot remove default version for model {name}"
            )
        removal = asyncio.shield(self._task(self._remove(found)))
        try:
            async with asyncio.timeout(self._options.unregister_model_timeout_s):
                await removal
        except TimeoutError:
            raise TorchServeError(
                408, "RequestTimeoutException", f"Timed out while cleaning resources: {name}"
            ) from None
        await self.on_changed()
        return Outcome(200, f'Model "{name}" unregistered')

    async def _remove(self, found: Registration) -> None:
        """Remove a version from the table and the repository, and a fetched archive from the store."""
        if not self._is_registered(found):
            return
        self._break_off(found)
        model = self.models[found.name]
        async with model.lock:
            if model.versions.get(found.version) is not found:
                return
            found.workers = 0
            if found.retrying is not None:
                found.retrying.cancel()
            del model.versions[found.version]
            model.at_startup = False  # this holds for the other versions too, as in TorchServe
            if not model.versions:
                self.models.pop(found.name, None)
            elif model.default == found.version:
                model.default = next(iter(model.versions))
            if found.serving:
                found.serving = 0
                await self._load(model)
            await self._rest(model)
            await self._server.registered_drained(found.name)
            if model.versions:
                await asyncio.to_thread(self._files.remove_version, found.name, found.number)
            else:
                await asyncio.to_thread(self._files.remove, found.name)
                self._server.forget_registered(found.name)
            if found.url:
                await asyncio.to_thread(self.store.release, found.archive)

    def _is_registered(self, found: Registration) -> bool:
        model = self.models.get(found.name)
        return model is not None and model.versions.get(found.version) is found

    @contextlib.asynccontextmanager
    async def _locked(self, found: Registration) -> AsyncIterator[RegisteredModel]:
        """Lock a model for a change. Raises TorchServeError if the version has been unregistered meanwhile."""
        model = self._known.get(found.name)
        if model is None:
            raise model_not_found(found.name)
        async with model.lock:
            if not self._is_registered(found):
                raise version_not_found(found.name, found.version) if model.versions else model_not_found(found.name)
            yield model

    def _break_off(self, found: Registration) -> None:
        """Stop waiting for the first workers of this version, which may hang."""
        model = self.models.get(found.name)
        if model is not None and model.changing is found and not found.serving:
            self._server.break_off_registered(found.name)

    # -- workers ---------------------------------------------------------------------------------------------------
    async def _apply(self, model: RegisteredModel, found: Registration) -> None:
        """Bring a version to its wanted number of workers. If this fails, raise the error; the old workers keep serving."""
        if not found.serving and found.starting is None:
            found.starting = asyncio.Event()
        model.changing = found
        try:
            await self._load(model, found)
            found.serving = found.workers
            found.failing_since = None
        except BaseException:
            await self._write(model)
            raise
        finally:
            model.changing = None
            if found.starting is not None:
                found.starting.set()
                found.starting = None

    async def _load(self, model: RegisteredModel, changed: Registration | None = None) -> None:
        """Write the repository, and load or unload the model. changed: a version with a new number of workers."""
        if await self._write(model, changed):
            await self._server.load_registered(model.name)
        else:
            await self._server.unload_registered(model.name)

    async def _rest(self, model: RegisteredModel) -> None:
        """Unload a model that neither has nor should have workers, because the server would wait for it to become ready."""
        if not any(one.workers or one.serving for one in model.versions.values()):
            await self._server.unload_registered(model.name)

    async def _write(self, model: RegisteredModel, changed: Registration | None = None) -> bool:
        """Write the versions that have workers. Return whether any version has workers."""
        workers = {one: one.workers if one is changed else one.serving for one in model.versions.values()}
        served = {one.number: self._overlay(one, count) for one, count in workers.items() if count}
        if served:
            default = model.default_version.number if model.default in model.versions else None
            await asyncio.to_thread(self._files.write, model.name, served, default)
        return bool(served)

    def _overlay(self, one: Registration, workers: int) -> ModelConfig:
        return overlay(one.settings, workers, one.archive_settings, self._gpus(), self._options)

    def _gpus(self) -> int:
        limit = self._options.number_of_gpu
        return gpu_count() if limit is None else min(gpu_count(), limit)

    # -- tasks -----------------------------------------------------------------------------------------------------
    def _task(self, work: "Any") -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as seen, because asyncio would log it if every caller has gone

    def close(self) -> None:
        """Begin no more work, and cancel the running work."""
        self._closing = True
        for task in self._tasks:
            task.cancel()


def refuse_missing(store: ModelStore, archive: str, what: str) -> None:
    """Raise UNAVAILABLE if the store lacks an archive that a snapshot names. what: the model or workflow of the archive."""
    if not archive or not (store.folder / archive).exists():
        raise unavailable(
            f"the snapshot cannot be restored: the archive '{archive}' of {what} is not in the model store; put it back, or "
            "start with --ncs and a config.properties of your own"
        )


async def _nobody_asks() -> None:
    """Do nothing. This is the default of `on_changed`, for a server that writes no snapshots."""


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s", error)


def _workers_failed(found: Registration, version: str | None, why: ServingError) -> TorchServeError:
    """version: the version as in the request. Without a version, TorchServe writes Java's null."""
    status = 507 if isinstance(why, LoadStopped) and why.http_status == 507 else 500
    message = f"Failed to start workers for model {found.name} version: {version or 'null'}"
    return TorchServeError(status, "InternalServerException", message)


def _refuse_too_many(workers: int) -> None:
    if workers > MAX_WORKERS:
        raise bad_request(f"a model has at most {MAX_WORKERS} workers, got {workers}")


def _cores() -> int:
    return len(os.sched_getaffinity(0))
