"""Makes the configuration with which a version is loaded: approved by repository agents, auto-completed and checked.

Auto-completion fills in the fields in Triton's order: name, backend (from the platform or the file in the version folder),
platform and file name. The backend then adds inputs, outputs and batching (repository/config/signature.py). The instance group
is last. Source: Triton, model_config_utils.cc (AutoCompleteBackendFields, NormalizeInstanceGroup) and
docs/user_guide/model_configuration.md.
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

from repository.agents import table as agents
from repository.config import validation
from repository.config.backends import BACKEND_OF_FILENAME, FORMATS, KINDS
from repository.config.model_config import is_ensemble, runner
from repository.config.signature import DEFAULT_MAX_BATCH_SIZE_KEY
from repository.core.errors import RepositoryError
from repository.files import signatures
from serving.backends.base.backend import Backend
from serving.backends.table import backend_class, kind_of
from serving.cli.options import Options
from serving.configuration.ensemble_check import StepConfig, check_ensemble
from serving.core.devices import gpu_count, model_filename, refuse_on_full_gpus
from serving.core.errors import invalid, not_found
from serving.repositories.model_source import VersionSource


def effective_config(source: VersionSource, options: Options, step_config: StepConfig) -> ModelConfig:
    """Return the configuration with which to load a version. Call it on a worker thread, because it reads the model file.

    step_config: returns the configuration of the model of an ensemble's step. Raises INVALID_ARG, which names the mistakes, if
    the configuration is not valid.
    """
    try:  # before anything reads the model file
        if options.model_signature_key:
            signatures.verify(source.model_dir / str(source.version), options.model_signature_key)
        agents.approve(source.config, source.model_dir)
    except RepositoryError as error:
        raise invalid(error.message) from error
    if options.disable_auto_complete_config:
        config = _with_backend(source.config, source.model_dir, source.version)
    else:
        key = DEFAULT_MAX_BATCH_SIZE_KEY
        batch = {backend: value for backend, setting, value in options.backend_config if setting == key}
        config = auto_complete_config(source.config, source.model_dir, source.version, batch)
    for backend, setting, value in options.backend_config:
        if backend == config.backend and setting not in config.parameters and setting != DEFAULT_MAX_BATCH_SIZE_KEY:
            config.parameters[setting].string_value = value
    _fill_defaults(config)
    problems = validation.validate(config, name=config.name)
    if problems:
        raise invalid(f"the configuration of '{config.name}' is not valid: {'; '.join(map(str, problems))}")
    if config.platform == "ensemble":
        check_ensemble(config, step_config)
    refuse_on_full_gpus(config, dict(options.model_load_gpu_limit))
    return config


def auto_complete_config(
    config: ModelConfig, model_dir: Path, version: int, default_batch: Mapping[str, str] = MappingProxyType({})
) -> ModelConfig:
    """Return a copy of `config`, completed from the version's model file.

    default_batch: backend ("" for all backends) -> max_batch_size for models that can batch. Raises INVALID_ARG if the
    configuration contradicts the file, NOT_FOUND if there is no file.
    """
    completed = ModelConfig()
    completed.CopyFrom(config)
    if not completed.name:
        completed.name = model_dir.name
    if is_ensemble(completed):
        completed.platform = "ensemble"
        return completed
    _complete_from_files(completed, model_dir / str(version), default_batch)
    return completed


def _with_backend(config: ModelConfig, model_dir: Path, version: int) -> ModelConfig:
    """Return a copy of the configuration, completed with only its backend, platform and file name."""
    completed = ModelConfig()
    completed.CopyFrom(config)
    if is_ensemble(completed):
        completed.platform = "ensemble"
    else:
        auto_complete_backend(completed, model_dir / str(version))
    return completed


def _complete_from_files(config: ModelConfig, version_dir: Path, default_batch: Mapping[str, str]) -> None:
    auto_complete_backend(config, version_dir)
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
        _complete_group(group, config.backend, backend)


def _fill_defaults(config: ModelConfig) -> None:
    """Fill in the defaults that clients see in Triton's effective configuration.

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


def auto_complete_backend(config: ModelConfig, version_dir: Path) -> None:
    """Complete backend, platform and file name, from each other and from the files in the folder.

    Raises INVALID_ARG if no field or file shows the backend, NOT_FOUND if the folder lacks the backend's file.
    """
    backend, filename = runner(config, version_dir)
    if not config.backend:
        config.backend = backend
    if not config.backend:
        raise invalid(
            f"model '{config.name}' names no backend, and its version folder has none of {', '.join(BACKEND_OF_FILENAME)}"
        )
    default = filename or kind_of(config.backend).filename
    if not any((version_dir / name).exists() for name in (default, *config.cc_model_filenames.values())):
        raise not_found(f"the version folder has no '{default}'")
    if not config.platform:
        config.platform = _platform(config.backend, default)
    config.default_model_filename = default


def _platform(backend: str, filename: str) -> str:
    """Return the platform that Triton writes into the configuration of a model with this file."""
    fitting = [one.platform for one in FORMATS.values() if one.filename == filename]
    return (fitting or [one.platform for one in KINDS[backend].formats])[0]


def _complete_group(group: ModelInstanceGroup, backend_name: str, backend: type[Backend]) -> None:
    """Replace KIND_AUTO by KIND_GPU if the backend can use a GPU, else by KIND_CPU. Fill in count and GPUs."""
    if group.kind == ModelInstanceGroup.KIND_AUTO:
        usable = backend.gpu_available()[0] and all(index < gpu_count() for index in group.gpus)
        group.kind = ModelInstanceGroup.KIND_GPU if usable else ModelInstanceGroup.KIND_CPU
    if group.count < 1:
        on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
        group.count = KINDS[backend_name].cpu_instances if on_cpu else 1
    if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
        group.gpus.extend(range(gpu_count()))
