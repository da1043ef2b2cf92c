"""Builds what serves a version of a model: the model with its weights, or one that sleeps until its first request."""

import dataclasses
from collections.abc import Callable, Coroutine

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.residency import EVICTABLE, ON_DEMAND, PINNED, residency_of
from serving.backends.base.backend import ModelSpec
from serving.core.devices import model_filename
from serving.core.model_identifier import ModelIdentifier
from serving.models.model import Model
from serving.models.model_version import ModelVersion
from serving.models.residency import ResidencyManager
from serving.models.sleeping_model import SleepingModel
from serving.repositories.model_source import VersionSource
from serving.resources.memory import FILES, MemoryUse, files_bytes
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import ModelStatistics, PhaseHistograms

# Return the configuration that a version is loaded with, completed and checked; runs on a worker thread.
EffectiveConfig = Callable[[VersionSource], ModelConfig]
WakeVersion = Callable[[ModelVersion, SleepingModel], Coroutine[None, None, None]]


class ModelBuilder:
    """Builds the versions of one model. Runs on the event loop's thread; files are read on others."""

    def __init__(
        self,
        identifier: ModelIdentifier,
        runtime: Runtime,
        effective_config: EffectiveConfig,
        residency: ResidencyManager,
        wake: WakeVersion,
    ) -> None:
        """wake: see SleepingModel; it is told which version's request came."""
        self._identifier = identifier
        self._runtime = runtime
        self._effective_config = effective_config
        self._residency = residency
        self._wake = wake

    def statistics(self, version: int) -> ModelStatistics:
        """Return counters that begin at zero."""
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

    async def build(self, version: ModelVersion, source: VersionSource, config: ModelConfig) -> Model | SleepingModel:
        """Build a version, asleep where its residency allows that. What serves is replaced by what serves."""
        spec = self._spec(source, config)
        needed = await self._memory_needed(version, spec)
        residency = residency_of(config)
        serves = version.model is not None and not version.asleep
        if residency.mode != PINNED and not serves:
            crowded = residency.mode == EVICTABLE and not self._residency.has_room(needed)
            if residency.mode == ON_DEMAND or version.asleep or crowded:
                return self._sleeping(version, spec)
        return await self._load(version, spec, needed)

    async def build_awake(self, version: ModelVersion, source: VersionSource, config: ModelConfig) -> Model:
        spec = self._spec(source, config)
        return await self._load(version, spec, await self._memory_needed(version, spec))

    def asleep_again(self, version: ModelVersion, model: Model) -> SleepingModel:
        """Return what stands in for a model whose weights are let go."""
        return self._sleeping(version, dataclasses.replace(model.spec, config=model.config))

    async def _load(self, version: ModelVersion, spec: ModelSpec, needed: MemoryUse) -> Model:
        loop = self._runtime.loop
        async with self._residency.reserve(needed, spec.name):
            model = Model(spec, version.statistics, self._runtime)
            began = loop.time()
            await model.load()
            version.statistics.load_s = loop.time() - began
            return model

    def _sleeping(self, version: ModelVersion, spec: ModelSpec) -> SleepingModel:
        labels = version.model.labels if version.model is not None else {}
        return SleepingModel(spec, version.statistics, lambda sleeping: self._wake(version, sleeping), labels)

    async def _memory_needed(self, version: ModelVersion, spec: ModelSpec) -> MemoryUse:
        """Return what the model held the last time; else the size of its files, on each GPU that it may go to as well."""
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
