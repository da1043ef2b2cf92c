"""Makes config.pbtxt of an imported model from the settings with which TorchServe served its versions."""

from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config, version_policy
from repository.config.document import Document
from repository.config.release import DEFAULT_ALIAS, set_aliases
from repository.torchserve import parameters as words
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.set_up import SetUpModel, SetUpVersion
from repository.torchserve.version_settings import overlay

DEFAULT_TIMEOUT_S = 120  # the default of our backend, if neither a configuration nor an archive sets one
_ONLY_IF_SAID = {
    "metrics_mode": words.METRICS_MODE,
    "metrics_config": words.METRICS_CONFIG,
    "model_metrics_auto_detect": words.METRICS_AUTO_DETECT,
}


def wanted_settings(version: SetUpVersion, options: TorchServeOptions, properties: frozenset[str]) -> ModelConfig:
    """Return a version's settings, without those that the server would fill in with the same values from its archive."""
    config = _all_settings(version, options, properties)
    if version.workers is None:
        config.ClearField("instance_group")
        del config.parameters[words.MIN_WORKERS], config.parameters[words.MAX_WORKERS]
    for key, in_archive in (
        (words.RESPONSE_TIMEOUT, version.in_archive.response_timeout_s),
        (words.STARTUP_TIMEOUT, version.in_archive.startup_timeout_s),
    ):
        if config.parameters[key].string_value == str(in_archive or DEFAULT_TIMEOUT_S):
            del config.parameters[key]
    return config


def _all_settings(version: SetUpVersion, options: TorchServeOptions, properties: frozenset[str]) -> ModelConfig:
    """Return all settings of a version, so that none is left to the model or the archive."""
    gpus = machine_gpus() if options.number_of_gpu is None else options.number_of_gpu
    workers = version.workers or 1
    config = overlay(version.settings, workers, version.in_archive, gpus, options)
    config.parameters[words.MIN_WORKERS].string_value = str(workers)
    config.parameters[words.MAX_WORKERS].string_value = str(version.max_workers or workers)
    for name, key in _ONLY_IF_SAID.items():
        if name not in properties and key in config.parameters:
            del config.parameters[key]
    return config


def machine_gpus() -> int:
    """Return how many NVIDIA GPUs this machine shows."""
    return sum(path.name[6:].isdecimal() for path in Path("/dev").glob("nvidia*"))


def document_of(proposed: Document, settings: ModelConfig) -> Document:
    """Return the configuration that an inspection proposes, with these settings merged into it."""
    return proposed.edited(lambda config: model_config.merge_overlay(config, settings))


def own_settings(
    version: SetUpVersion, model: SetUpModel, options: TorchServeOptions, properties: frozenset[str]
) -> str:
    """Return the overlay of a version whose settings differ from the model's; "" if they are the same."""
    other = speaks_for(model)
    if wanted_settings(version, options, properties) == wanted_settings(other, options, properties):
        return ""
    own = _all_settings(version, options, properties)
    if other.settings.handler and not version.settings.handler:
        own.parameters[words.HANDLER].string_value = version.manifest.handler
    # An overlay without a delay would leave the model's delay in force.
    own.dynamic_batching.max_queue_delay_microseconds = own.dynamic_batching.max_queue_delay_microseconds or 1
    return model_config.format(own)


def speaks_for(model: SetUpModel) -> SetUpVersion:
    """Return the version whose settings become the settings of the model."""
    return model.default or model.versions[-1]


def served_document(document: Document, served: list[int], published: list[int], default: int | None) -> Document:
    """Return a configuration that serves these versions. `default` answers requests that name no version."""

    def change(config: ModelConfig) -> None:
        config.ClearField("version_policy")
        if served == published:
            config.version_policy.all.SetInParent()
        else:
            version_policy.set_specific(config, served)
        set_aliases(config, {DEFAULT_ALIAS: default} if default is not None and default != max(served) else {})

    return document.edited(change)


def describe(version: SetUpVersion, model: SetUpModel) -> str:
    """Return a version's settings in words."""
    settings = version.settings
    parts = [f"batches of {settings.batch_size}"]
    if settings.batch_size > 1:
        parts[0] += f" within {settings.max_batch_delay_ms} ms"
    workers = version.workers
    parts.append("as many workers as the archive or the server says" if workers is None else f"{workers} workers")
    if workers == 1:
        parts[-1] = "1 worker"
    parts.append(f"{settings.response_timeout_s} s to answer")
    if version is model.default:
        parts.append("the default version")
    elif not version.registered:
        parts.append("not registered, so it is not served")
    return ", ".join(parts)
