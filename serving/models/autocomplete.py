"""Completes a configuration from the model file, as Triton does unless --disable-auto-complete-config is given.

In this order: name, backend (from the platform or the file that the version folder holds), platform and file name, inputs,
outputs, batching (by the backend, see backends/signature.py), instance group. Source: Triton, model_config_utils.cc
(AutoCompleteBackendFields, NormalizeInstanceGroup) and docs/user_guide/model_configuration.md.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tritonclient.grpc.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelSequenceBatching,
)

from repository.config.model_config import DEFAULT_FILENAMES, is_ensemble, runner
from serving.backends.base.backend import Backend
from serving.backends.base.signature import DEFAULT_MAX_BATCH_SIZE_KEY
from serving.backends.table import backend_class
from serving.core.devices import gpu_count, model_filename
from serving.core.errors import invalid, not_found

# The platform that Triton writes into the configuration of a model with this file, where none is given.
_PLATFORM_OF_FILE = {
    "model.onnx": "onnxruntime_onnx",
    "model.pt": "pytorch_libtorch",
    "model.pt2": "",  # torch_aoti or, for a torch.export archive, none: the backend looks into the file
    "model.plan": "tensorrt_plan",
    "model.savedmodel": "tensorflow_savedmodel",
}
_PLATFORM_OF_BACKEND = {
    "onnxruntime": "onnxruntime_onnx",
    "pytorch": "pytorch_libtorch",
    "tensorrt": "tensorrt_plan",
    "tensorflow": "tensorflow_savedmodel",
}

# Triton starts two instances on the CPU for backends that gain from it.
_CPU_INSTANCES = {"onnxruntime": 2}


def complete(
    config: ModelConfig, model_dir: Path, version: int, default_batch: Mapping[str, str] = MappingProxyType({})
) -> ModelConfig:
    """A completed copy of `config`; INVALID_ARG where it contradicts the file of that version, NOT_FOUND without one.

    default_batch: backend, or "" for all -> max_batch_size of models that can batch.
    """
    completed = ModelConfig()
    completed.CopyFrom(config)
    if not completed.name:
        completed.name = model_dir.name
    if is_ensemble(completed):
        completed.platform = "ensemble"
        return completed
    complete_version(completed, model_dir / str(version), default_batch)
    return completed


def complete_backend_only(config: ModelConfig, model_dir: Path, version: int) -> ModelConfig:
    """A copy that names its backend and file; everything else is left as written."""
    completed = ModelConfig()
    completed.CopyFrom(config)
    if is_ensemble(completed):
        completed.platform = "ensemble"
    else:
        complete_backend(completed, model_dir / str(version))
    return completed


def complete_version(
    config: ModelConfig, version_dir: Path, default_batch: Mapping[str, str] = MappingProxyType({})
) -> None:
    """The same for one folder of model files, in place: what inspection has before there is a model."""
    complete_backend(config, version_dir)
    backend = backend_class(config.backend)
    default = config.default_model_filename
    config.default_model_filename = model_filename(config)
    batch = default_batch.get(config.backend, default_batch.get("", ""))
    if batch:
        config.parameters[DEFAULT_MAX_BATCH_SIZE_KEY].string_value = batch
    backend.complete_config(config, version_dir)
    if batch:
        del config.parameters[DEFAULT_MAX_BATCH_SIZE_KEY]
    config.default_model_filename = default
    if not config.instance_group:
        config.instance_group.add(name=config.name, kind=ModelInstanceGroup.KIND_AUTO)
    for group in config.instance_group:
        complete_group(group, config.backend, backend)


def fill_defaults(config: ModelConfig) -> None:
    """What Triton writes into the configuration in force where nothing is given, so that clients read it there.

    Source: Triton's core, NormalizeModelConfig and NormalizeInstanceGroup in model_config_utils.cc.
    """
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1
    if config.max_batch_size > 0:
        if config.HasField("dynamic_batching"):
            _prefer(config.dynamic_batching, config.max_batch_size)
        if config.sequence_batching.HasField("oldest"):
            _prefer(config.sequence_batching.oldest, config.max_batch_size)
    if config.HasField("sequence_batching") and not config.sequence_batching.max_sequence_idle_microseconds:
        config.sequence_batching.max_sequence_idle_microseconds = 1_000_000
    if not is_ensemble(config):
        optimization = config.optimization
        for name in ("input_pinned_memory", "output_pinned_memory"):
            if not optimization.HasField(name):
                getattr(optimization, name).enable = True
    for number, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{number}"


def _prefer(batching: ModelDynamicBatching | ModelSequenceBatching.StrategyOldest, size: int) -> None:
    if not batching.preferred_batch_size:
        batching.preferred_batch_size.append(size)


def complete_backend(config: ModelConfig, version_dir: Path) -> None:
    """Backend, platform and file name, from each other and from the files in the folder."""
    backend, filename = runner(config, version_dir)
    if not config.backend:
        config.backend = backend
    if not config.backend:
        raise invalid(
            f"model '{config.name}' names no backend, and its version folder has none of {', '.join(DEFAULT_FILENAMES)}"
        )
    default = filename or backend_class(config.backend).default_filename
    if not any((version_dir / name).exists() for name in (default, *config.cc_model_filenames.values())):
        raise not_found(f"the version folder has no '{default}'")
    if not config.platform:
        config.platform = _PLATFORM_OF_FILE.get(default, _PLATFORM_OF_BACKEND.get(config.backend, ""))
    config.default_model_filename = default


def complete_group(group: ModelInstanceGroup, backend_name: str, backend: type[Backend]) -> None:
    """KIND_AUTO becomes KIND_GPU where this backend can use one and KIND_CPU otherwise; then count and GPUs."""
    if group.kind == ModelInstanceGroup.KIND_AUTO:
        usable = backend.gpu_available()[0] and all(index < gpu_count() for index in group.gpus)
        group.kind = ModelInstanceGroup.KIND_GPU if usable else ModelInstanceGroup.KIND_CPU
    if group.count < 1:
        on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
        group.count = _CPU_INSTANCES.get(backend_name, 1) if on_cpu else 1
    if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
        group.gpus.extend(range(gpu_count()))
