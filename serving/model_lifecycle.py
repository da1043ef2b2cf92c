"""The versions of one model: UNAVAILABLE, LOADING, READY, UNLOADING, each with the reason.

A reload builds the new version beside the old one, warms it, switches one reference, then lets the old one finish its
requests. When the new one does not load, the old one keeps serving.
"""

import asyncio
import ctypes
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.base import ModelSpec
from serving.devices import model_filename
from serving.errors import Code, ServingError, invalid, not_found, unavailable
from serving.model import Model
from serving.model_source import VersionSource
from serving.runtime import Runtime
from serving.statistics import ModelStatistics

log = logging.getLogger(__name__)

# Completes a version's configuration from its model file; runs on a worker thread.
Complete = Callable[[VersionSource], ModelConfig]


KEEPS_SERVING = "the last reload failed, what was loaded before keeps serving: "


class State(Enum):
    """Triton's model states, as the repository index shows them."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"


@dataclass(slots=True, eq=False)
class VersionEntry:
    """`model` is what serves; it stays while a newer one is being built."""

    statistics: ModelStatistics
    state: State = State.UNAVAILABLE
    reason: str = ""
    model: Model | None = None
    key: Any = None  # VersionSource.key of what serves
    draining: list[Model] = field(default_factory=list)


class ModelLifecycle:
    """All versions of one model that are or were loaded."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        complete: Complete,
    ) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.versions: dict[int, VersionEntry] = {}
        self.default: Model | None = None  # the highest READY version
        self.wanted = False  # asked for and not unloaded since: strict readiness waits for it
        self.error = ""  # why the last load failed before any version could be named
        self._runtime = runtime
        self._loop = runtime.loop
        self._executor = runtime.executor
        self._complete = complete
        self._drains: set[asyncio.Task[None]] = set()

    # -- requests --------------------------------------------------------------------------------------------------
    def resolve(self, version: str) -> Model:
        """The model that answers for a version as asked ("" or "-1": the highest that is ready)."""
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
        results = await asyncio.gather(*(self._load_version(source) for source in sources), return_exceptions=True)
        failures = [(s.version, r) for s, r in zip(sources, results, strict=True) if isinstance(r, BaseException)]
        self._choose_default()
        if failures:
            codes = {error.code for _, error in failures if isinstance(error, ServingError)}
            reasons = "; ".join(f"version {version}: {error}" for version, error in failures)
            raise ServingError(
                codes.pop() if len(codes) == 1 else Code.INTERNAL, f"failed to load '{self.name}', {reasons}"
            )
        selected = {source.version for source in sources}
        for version in self.versions.keys() - selected:
            self._retire(version, "replaced under the version policy")
        self._choose_default()

    async def _load_version(self, source: VersionSource) -> None:
        entry = self.versions.get(source.version)
        if entry is None:
            entry = self.versions[source.version] = VersionEntry(ModelStatistics(self.name, source.version))
        if entry.model is not None and entry.key == source.key:
            entry.reason = ""
            return
        if entry.model is None:
            entry.state = State.LOADING
        try:
            await self._replace(entry, source)
        except ServingError as error:
            if entry.model is None:
                entry.state, entry.reason = State.UNAVAILABLE, error.message
            else:
                entry.reason = KEEPS_SERVING + error.message
            raise

    async def _replace(self, entry: VersionEntry, source: VersionSource) -> None:
        config = await self._loop.run_in_executor(self._executor, self._complete, source)
        old = entry.model
        if old is not None and entry.key[0] == source.files and _needs_no_reload(old.config, config):
            await old.reconfigure(config)
        else:
            model = Model(self._spec(source, config), entry.statistics, self._runtime)
            await model.load()
            entry.model = model
            if old is not None:
                self._drain(entry, old)
        entry.key = source.key
        entry.state, entry.reason = State.READY, ""
        self._choose_default()

    def _spec(self, source: VersionSource, config: ModelConfig) -> ModelSpec:
        version_dir = source.model_dir / str(source.version)
        return ModelSpec(
            name=self.name,
            version=source.version,
            config=config,
            version_dir=version_dir,
            model_file=version_dir / model_filename(config),
            strict_devices=self._runtime.strict_devices,
        )

    # -- unloading -------------------------------------------------------------------------------------------------
    def unload(self) -> None:
        """Take no new requests; what is under way finishes."""
        self.wanted = False
        for version in self.versions:
            self._retire(version, "unloaded")
        self._choose_default()

    async def drained(self) -> None:
        """Returns when nothing of this model is being freed any more."""
        while self._drains:
            await asyncio.gather(*self._drains)

    def _retire(self, version: int, reason: str) -> None:
        entry = self.versions[version]
        model, entry.model, entry.key = entry.model, None, None
        if model is not None:
            entry.state, entry.reason = State.UNLOADING, reason
            self._drain(entry, model)
        elif entry.state is not State.UNLOADING:
            entry.state, entry.reason = State.UNAVAILABLE, reason

    def _drain(self, entry: VersionEntry, model: Model) -> None:
        entry.draining.append(model)
        task = self._loop.create_task(self._drain_and_free(entry, model))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain_and_free(self, entry: VersionEntry, model: Model) -> None:
        try:
            await model.drain()
        except Exception:
            log.exception("model '%s' was not freed cleanly", self.name)
        entry.draining.remove(model)
        if entry.state is State.UNLOADING and not entry.draining:
            entry.state = State.UNAVAILABLE
        del model  # the last reference: what it held goes before memory is given back
        await self._loop.run_in_executor(self._executor, _return_memory)

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


def _needs_no_reload(old: ModelConfig, new: ModelConfig) -> bool:
    return _fixed_part(old) == _fixed_part(new)


def _fixed_part(config: ModelConfig) -> bytes:
    """The configuration without what can be changed while the model serves."""
    fixed = ModelConfig()
    fixed.CopyFrom(config)
    fixed.ClearField("version_policy")
    if not config.HasField("sequence_batching"):  # sequences are bound to their instances
        fixed.ClearField("instance_group")
        fixed.ClearField("dynamic_batching")
    for key in [key for key in fixed.parameters if key.startswith("slipway.") and key != "slipway.isolation"]:
        del fixed.parameters[key]
    return bytes(fixed.SerializeToString(deterministic=True))


def _return_memory() -> None:
    """Give freed pages back to the system: glibc keeps them otherwise, and an unloaded model would seem to leak."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return
