"""Completes a configuration from an archive.

Fields that are set in the configuration stay. The archive fills in the other fields. Source of the archive's settings:
pytorch/serve, docs/configuration.md and docs/management_api.md.
"""

from pathlib import Path

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.errors import NotFound, RepositoryError
from repository.torchserve import model_archive
from repository.torchserve.model_archive import Manifest, ModelSettings
from repository.torchserve.parameters import (
    MAX_WORKERS,
    MIN_WORKERS,
    RESPONSE_TIMEOUT,
    STARTUP_TIMEOUT,
    VERSION,
    add_workers,
)
from serving.backends.base.parameters import Parameters
from serving.backends.child.bounds import Bounds
from serving.core.devices import gpu_count
from serving.core.errors import ServingError, invalid, not_found, unsupported

DATA = "data"
"""The name of the input and of the output of an archive without declared ones."""
DEFAULT_TIMEOUT_S = 120
DEFAULT_DELAY_MS = 100

_CPP = "LSP"
_PIECEWISE = ("pp", "tp", "pptp")


def archive_path(version_dir: Path, filename: str) -> Path:
    """Return the path of the archive: a file or folder or, for the file name MAR-INF, the version's own folder."""
    return version_dir if filename == model_archive.FOLDER else version_dir / filename


def complete(config: ModelConfig, archive: Path) -> None:
    """Complete a configuration from the archive. Raises ServingError for a malformed archive."""
    try:
        manifest, settings, _, streams = model_archive.read_archive(archive)
    except RepositoryError as error:
        raise as_serving_error(error) from None
    if manifest.runtime.upper() == _CPP:
        raise unsupported("the archive's runtime is LSP: its handler is a C++ library, which this server does not run")
    refuse_piecewise(settings)
    _complete_tensors(config, settings)
    _complete_batching(config, settings)
    if not config.instance_group:
        add_workers(config, max(1, settings.min_workers or 1), settings, gpu_count())
    if streams and not config.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = True
    _complete_parameters(config, manifest, settings)


def as_serving_error(error: RepositoryError) -> ServingError:
    """Return the server's error for a problem with an archive."""
    return not_found(error.message) if isinstance(error, NotFound) else invalid(error.message)


def refuse_piecewise(settings: ModelSettings) -> None:
    if settings.parallel_type.lower() in _PIECEWISE:
        raise unsupported(
            f"parallelType '{settings.parallel_type}' divides one model among several processes, which this server does not do"
        )


def _complete_tensors(config: ModelConfig, settings: ModelSettings) -> None:
    if not config.input:
        config.input.add(name=DATA, data_type=mc.TYPE_STRING, dims=[-1], allow_ragged_batch=True)
        config.max_batch_size = config.max_batch_size or settings.batch_size or 1
    if not config.output:
        config.output.add(name=DATA, data_type=mc.TYPE_STRING, dims=[1])


def _complete_batching(config: ModelConfig, settings: ModelSettings) -> None:
    if config.WhichOneof("scheduling_choice") is None and config.max_batch_size > 0:
        config.dynamic_batching.SetInParent()
        if config.max_batch_size > 1:
            delay_ms = DEFAULT_DELAY_MS if settings.max_batch_delay_ms is None else settings.max_batch_delay_ms
            config.dynamic_batching.max_queue_delay_microseconds = delay_ms * 1000
    if config.HasField("dynamic_batching"):
        policy = config.dynamic_batching.default_queue_policy
        if settings.job_queue_size is not None:
            policy.max_queue_size = policy.max_queue_size or settings.job_queue_size
        if settings.client_timeout_ms:
            policy.default_timeout_microseconds = (
                policy.default_timeout_microseconds or settings.client_timeout_ms * 1000
            )


def _complete_parameters(config: ModelConfig, manifest: Manifest, settings: ModelSettings) -> None:
    values = {
        RESPONSE_TIMEOUT: settings.response_timeout_s,
        STARTUP_TIMEOUT: settings.startup_timeout_s,
        MIN_WORKERS: settings.min_workers,
        MAX_WORKERS: settings.max_workers,
    }
    for key, value in values.items():
        if value is not None and key not in config.parameters:
            config.parameters[key].string_value = str(value)
    config.parameters[VERSION].string_value = manifest.version


def bounds(parameters: Parameters) -> Bounds:
    """Return the time limits of a batch and of a start."""
    return Bounds(
        execution_s=parameters.integer(RESPONSE_TIMEOUT, DEFAULT_TIMEOUT_S, 1),
        execution_named=f"{RESPONSE_TIMEOUT} (responseTimeout)",
        start_s=parameters.integer(STARTUP_TIMEOUT, DEFAULT_TIMEOUT_S, 1),
        start_named=f"{STARTUP_TIMEOUT} (startupTimeout)",
    )
