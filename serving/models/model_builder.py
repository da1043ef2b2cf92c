"""Builds the model of a version: with its weights, or asleep until its first request."""

import dataclasses
from collections.abc import Callable, Coroutine, Iterable

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository.config.residency import EVICTABLE, ON_DEMAND, PINNED, residency_of
from serving.backends.base.backend import ModelSpec
from serving.backends.table import backend_class
from serving.core.devices import model_filename
from serving.core.errors import unavailable
from serving.core.model_identifier import ModelIdentifier
from serving.models.model import Model
from serving.models.model_version import ModelVersion
from serving.models.residency import ResidencyManager
from serving.models.sleeping_model import SleepingModel
from serving.repositories.model_source import VersionSource
from serving.resources.available_memory import shortage
from serving.resources.memory import FILES, NOTHING, MemoryUse, files_bytes
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import ModelStatistics, PhaseHistograms

# A function that returns the completed and checked configuration for a load of a version. Runs on a worker thread.
EffectiveConfig = Callable[[VersionSource], ModelConfig]
Plan = tuple[ModelVersion, VersionSource, ModelConfig]
WakeVersion = Callable[[ModelVersion, SleepingModel], Coroutine[None, None, None]]


class ModelBuilder:
    """Builds the versions of one model. Runs on the event loop's thread. Files are read on other threads."""

    def __init__(
        self,
        identifier: ModelIdentifier,
        runtime: Runtime,
        effective_config: EffectiveConfig,
        residency: ResidencyManager,
        wake: WakeVersion,
    ) -> None:
        """wake: wakes the sleeping model of a version (see SleepingModel)."""
        self._identifier = identifier
        self._runtime = runtime
        self._effective_config = effective_config
        self._residency = residency
        self._wake = wake

    def statistics(self, version: int) -> ModelStatistics:
        """Return statistics for a version, with all counters at zero."""
        runtime, identifier = self._runtime, self._identifier
        return ModelStatistics(
            identifier.name,
            version,
            identifier.namespace,
            phases=PhaseHistograms() if runtime.summaries else None,
            first_responses=runtime.first_responses,
        )

    async def effective_config(self, source: VersionSource) -> ModelConfig:
        return await self._runtime.in_thread(self._effective_config, source)

    async def shortage(self, plans: Iterable[Plan], *, awake: bool) -> str:
        """Make room in the budgets for the models to be built. Return why they still do not fit into the available memory, or
        "" if they fit. Only their `least_memory` is compared with the available memory."""
        if not self._runtime.checks_memory:
            return ""
        needed = least = NOTHING
        for version, source, config in plans:
            spec = self._spec(source, config)
            wanted = await self._memory_needed(version, spec)
            if not self._sleeps(version, config, wanted, awake=awake):
                needed += wanted
                least += await self._runtime.in_thread(least_memory, spec)
        await self._residency.make_room(needed, self._identifier.name)
        return await self._runtime.in_thread(shortage, least)

    async def build(
        self, version: ModelVersion, source: VersionSource, config: ModelConfig, *, awake: bool = False
    ) -> Model | SleepingModel:
        """Build the model of a version, without warming it up. The model sleeps if its residency requires that, unless `awake`
        is true or it replaces an awake model."""
        spec = self._spec(source, config)
        needed = await self._memory_needed(version, spec)
        if self._sleeps(version, config, needed, awake=awake):
            return self._sleeping(version, spec, needed)
        return await self._load(spec, needed)

    def _sleeps(self, version: ModelVersion, config: ModelConfig, needed: MemoryUse, *, awake: bool) -> bool:
        mode = residency_of(config).mode
        if awake or mode == PINNED or (version.model is not None and not version.asleep):
            return False
        if mode == ON_DEMAND or version.asleep:
            return True
        return mode == EVICTABLE and not self._residency.has_room(needed)

    async def build_awake(self, version: ModelVersion, source: VersionSource, config: ModelConfig) -> Model:
        """Build the model of a version for a waiting request, warm it up and put it into service."""
        spec = self._spec(source, config)
        if why := await self.shortage([(version, source, config)], awake=True):
            raise unavailable(f"there is not enough memory to load it: {why}")
        model = await self._load(spec, await self._memory_needed(version, spec))
        await model.warm_up()
        model.enter_service(version.statistics)
        return model

    def asleep_again(self, version: ModelVersion, model: Model) -> SleepingModel:
        """Return a sleeping model to replace an awake model whose weights will be freed."""
        return self._sleeping(version, dataclasses.replace(model.spec, config=model.config), model.held)

    async def _load(self, spec: ModelSpec, needed: MemoryUse) -> Model:
        async with self._residency.reserve(needed, spec.name):
            model = Model(spec, self.statistics(spec.version), self._runtime)
            await model.load()
            return model

    def _sleeping(self, version: ModelVersion, spec: ModelSpec, needed: MemoryUse) -> SleepingModel:
        labels = version.model.labels if version.model is not None else {}
        return SleepingModel(
            spec,
            version.statistics,
            lambda sleeping: self._wake(version, sleeping),
            labels,
            lambda: self._residency.has_room(needed),
        )

    async def _memory_needed(self, version: ModelVersion, spec: ModelSpec) -> MemoryUse:
        """Return the memory that the model held when it was last awake. If this memory is unknown, return the size of its
        files, for the host and for each of its GPUs."""
        if version.memory_awake is not None:
            return version.memory_awake
        size = await self._runtime.in_thread(files_bytes, spec.version_dir)
        gpus = sorted({gpu for group in spec.config.instance_group for gpu in group.gpus})
        return MemoryUse(size, tuple((gpu, size) for gpu in gpus), FILES)

    def _spec(self, source: VersionSource, config: ModelConfig) -> ModelSpec:
        version_dir = source.model_dir / str(source.version)
        return ModelSpec(
            name=self._identifier.name,
            version=source.version,
            config=config,
            version_dir=version_dir,
            model_file=version_dir / model_filename(config),
            strict_devices=self._runtime.strict_devices,
            runtime=self._runtime,
        )


def least_memory(spec: ModelSpec) -> MemoryUse:
    """Return the least memory that a model needs on the host and the GPUs of its instances: the size of its files. A model
    with user code counts as zero, because that code may read only a part of the files or none."""
    backend = spec.config.backend  # "" for an ensemble
    if backend and backend_class(backend).runs_user_code:
        return NOTHING
    kinds = {group.kind for group in spec.config.instance_group}
    gpus = sorted({gpu for group in spec.config.instance_group for gpu in group.gpus})
    size = files_bytes(spec.version_dir) if kinds else 0
    host = size if ModelInstanceGroup.KIND_CPU in kinds else 0
    return MemoryUse(host, tuple((gpu, size) for gpu in gpus), FILES)
