"""A version by the name that TorchServe's users know: the archive's own, any string ("1.0"), which each version's configuration
has beside its number in the repository.

A version of another backend has no such name: it answers to its number, "3", and to "3.0".
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.release import DEFAULT_ALIAS, is_alias
from serving.core.errors import ServingError
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.errors import model_not_found, version_not_found

PARAMETER = "torchserve.version"  # of a configuration, written when an archive is read


def resolve(server: InferenceServer, name: str, version: str | None = None) -> str:
    """Return the version as InferenceServer takes it: "" without one, else the number of the version of that name; `default` is
    left as it is, for a rollout may share its requests.

    TorchServeError for a model that the server has never had, and where no version that serves has that name, as its own or as
    an alias."""
    if not server.knows_model(name):
        raise model_not_found(name)
    if not version:
        return ""
    for number in server.ready_versions(name):
        if version in names_of(server.model_config(name, str(number)), number):
            return str(number)
    if is_alias(version):
        try:
            found = str(server.resolved_version(name, version))
            return version if version == DEFAULT_ALIAS else found
        except ServingError:
            pass  # not one of this model, or not one that serves
    raise version_not_found(name, version)


def label(server: InferenceServer, name: str, number: int) -> str:
    """Return the name of a version that serves."""
    return names_of(server.model_config(name, str(number)), number)[0]


def names_of(config: ModelConfig, number: int) -> tuple[str, ...]:
    """Return the names by which the version with this configuration answers; the first is the one shown."""
    own = config.parameters[PARAMETER].string_value if PARAMETER in config.parameters else ""
    return (own,) if own else (f"{number}.0", str(number))
