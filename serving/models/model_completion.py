"""The configuration in force: as written, let pass by its repository agents, completed from the model file, and checked."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository import agents
from repository.config import validation
from repository.core.errors import RepositoryError
from serving.backends.base.signature import DEFAULT_MAX_BATCH_SIZE_KEY as DEFAULT_BATCH
from serving.cli.options import Options
from serving.core.devices import refuse_on_full_gpus
from serving.core.errors import invalid
from serving.models import autocomplete
from serving.models.ensemble_check import Lookup, check_ensemble
from serving.repositories.model_source import VersionSource


def complete(source: VersionSource, options: Options, step_config: Lookup) -> ModelConfig:
    """On a worker thread; INVALID_ARG with everything that is wrong. `step_config` gives what a step of an ensemble calls."""
    try:
        agents.approve(source.config, source.model_dir)  # before anything reads the model file
    except RepositoryError as error:
        raise invalid(error.message) from error
    if options.disable_auto_complete_config:
        config = autocomplete.complete_backend_only(source.config, source.model_dir, source.version)
    else:
        batch = {backend: value for backend, setting, value in options.backend_config if setting == DEFAULT_BATCH}
        config = autocomplete.complete(source.config, source.model_dir, source.version, batch)
    for backend, setting, value in options.backend_config:
        if backend == config.backend and setting not in config.parameters and setting != DEFAULT_BATCH:
            config.parameters[setting].string_value = value
    autocomplete.fill_defaults(config)
    problems = validation.validate(config, name=config.name)
    if problems:
        raise invalid(f"the configuration of '{config.name}' is not valid: {'; '.join(map(str, problems))}")
    if config.platform == "ensemble":
        check_ensemble(config, step_config)
    refuse_on_full_gpus(config, dict(options.model_load_gpu_limit))
    return config
