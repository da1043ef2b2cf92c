"""Finds versions by the names that TorchServe gives them.

A version's name is a string of any form, such as "1.0", which comes from the archive and is stored in the version's
configuration. A version of another backend has no such name, and is found by its number, as "3" or "3.0".
"""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.release import DEFAULT_ALIAS, is_alias
from serving.core.errors import ServingError
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.errors import model_not_found, version_not_found

PARAMETER = "torchserve.version"  # a parameter of a configuration, set when an archive is read


def resolve(server: InferenceServer, name: str, version: str | None = None) -> str:
    """Return the version for InferenceServer: "" if none is given, else the number of the version of that name. `default` is
    returned unchanged, because a rollout may split its requests.

    Raises TorchServeError for a model that the server has never had, and for a name that is neither the name nor an alias of a
    serving version."""
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
            pass  # it is no alias of this model, or its version does not serve
    raise version_not_found(name, version)


def label(server: InferenceServer, name: str, number: int) -> str:
    """Return the name of a version that serves."""
    return names_of(server.model_config(name, str(number)), number)[0]


def names_of(config: ModelConfig, number: int) -> tuple[str, ...]:
    """Return the names of the version with this configuration. Clients see the first name."""
    own = config.parameters[PARAMETER].string_value if PARAMETER in config.parameters else ""
    return (own,) if own else (f"{number}.0", str(number))
