"""The settings of a registered version: the source of each setting, and its form in config.pbtxt.

A request to register overrides the archive's model-config.yaml, which overrides config.properties. For timeouts, the file
model-config.yaml also overrides the request: a timeout that it leaves out has TorchServe's default. Source: TorchServe 0.12.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from tritonclient.grpc.model_config_pb2 import TYPE_STRING, ModelConfig

from repository.torchserve import parameters as words
from repository.torchserve.model_archive import Manifest, ModelSettings
from repository.torchserve.options import TorchServeOptions

MOST = 2**31 - 1
MAX_WORKERS = 1024  # the most workers of one version
DEFAULT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Registering:
    """The settings of a registration. A value of None leaves a setting to the archive or config.properties."""

    url: str | None
    model_name: str = ""
    runtime: str = ""
    handler: str = ""
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    initial_workers: int | None = None
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None
    synchronous: bool = True
    parts: tuple[str, ...] = ()  # for a node of a workflow: the names of the inputs that it gets from other nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a served version, except its workers."""

    batch_size: int
    max_batch_delay_ms: int
    response_timeout_s: int
    startup_timeout_s: int
    job_queue_size: int
    handler: str = ""  # the handler in place of the handler in the manifest
    runtime: str = "python"
    parts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        asked: Registering,
        archive: ModelSettings,
        manifest: Manifest,
        options: TorchServeOptions,
        name: str,
        version: str,
        snapshot: Mapping[str, Any] | None = None,
    ) -> "Settings":
        """Return the settings of a version. snapshot: the settings of the version in a snapshot, which has all of them."""
        said = options.models.get(name, {}).get(version, {})
        if snapshot is not None:
            first = [snapshot.get(key) for key in ("batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout")]
        else:
            first = [asked.batch_size, asked.max_batch_delay_ms, None, None]
        return cls(
            batch_size=_first(first[0], archive.batch_size, said.get("batchSize"), default=options.batch_size),
            max_batch_delay_ms=_first(
                first[1],
                archive.max_batch_delay_ms,
                said.get("maxBatchDelay"),
                default=options.max_batch_delay_ms,
                least=0,
            ),
            response_timeout_s=_first(
                first[2],
                archive.response_timeout_s,
                DEFAULT_TIMEOUT_S if archive.whole else None,
                said.get("responseTimeout"),
                asked.response_timeout_s,
                default=int(options.default_response_timeout_s),
            ),
            startup_timeout_s=_first(
                first[3],
                archive.startup_timeout_s,
                DEFAULT_TIMEOUT_S if archive.whole else None,
                said.get("startupTimeout"),
                asked.startup_timeout_s,
                default=int(options.default_startup_timeout_s),
            ),
            job_queue_size=_first(archive.job_queue_size, said.get("jobQueueSize"), default=options.job_queue_size),
            handler=asked.handler or ("" if manifest.handler else options.default_service_handler),
            runtime=asked.runtime or manifest.runtime or "python",
            parts=asked.parts,
        )


def overlay(
    settings: Settings, workers: int, archive: ModelSettings, gpus: int, options: TorchServeOptions
) -> ModelConfig:
    """Return the overlay for a version's folder. gpus: the number of GPUs that may be used."""
    config = ModelConfig(max_batch_size=settings.batch_size)
    batching = config.dynamic_batching
    batching.default_queue_policy.max_queue_size = settings.job_queue_size
    if settings.batch_size > 1:
        batching.max_queue_delay_microseconds = settings.max_batch_delay_ms * 1000
    words.add_workers(config, workers, archive, gpus)
    for name in settings.parts:
        config.input.add(name=name, data_type=TYPE_STRING, dims=[1])
    said = {
        words.HANDLER: settings.handler,
        words.RESPONSE_TIMEOUT: str(settings.response_timeout_s),
        words.STARTUP_TIMEOUT: str(settings.startup_timeout_s),
        words.ENVELOPE: options.service_envelope,
        words.LIMIT_IMAGES: "" if options.limit_max_image_pixels else "false",
        words.METRICS_MODE: options.metrics_mode,
        words.METRICS_CONFIG: str(options.metrics_config.resolve()) if options.metrics_config else "",
        words.METRICS_AUTO_DETECT: "true" if options.model_metrics_auto_detect else "",
        words.PARTS: "true" if settings.parts else "",
        words.INSTALL: "true" if options.install_py_dep_per_model else "",
    }
    for key, value in said.items():
        if value:
            config.parameters[key].string_value = value
    return config


def workers_in_archive(said: ModelSettings) -> tuple[int, int] | None:
    """Return the least and the most workers that an archive asks for, or None unless it gives both numbers."""
    least, most = said.min_workers or 0, said.max_workers or 0
    return (least, most) if 0 < least <= most else None


def read_workers(value: object, default: int, least: int = 1) -> int:
    """Return `value` if it is a number of workers, and otherwise the default, as TorchServe does."""
    return value if _is_number(value) and least <= value <= MAX_WORKERS else default


def _first(*values: object, default: int, least: int = 1) -> int:
    """Return the first value that is a number of at least `least`; TorchServe ignores other values."""
    return next((value for value in values if _is_number(value) and least <= value <= MOST), default)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
