"""The protocols, by the names that policies use. A module is imported when a policy first needs its protocol."""

from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Remote
from repository.core.errors import RepositoryError
from serving.core.errors import invalid
from serving.plugins.plugin import imported
from serving.plugins.table import PLUGINS
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.protocol import RemoteProtocol

Make = Callable[[Remote, ModelConfig, RemoteAccess, RequestMemory], RemoteProtocol]

PROTOCOLS = {
    "v2": "serving.traffic.remotes.v2_http:V2Http",
    "v2-grpc": "serving.traffic.remotes.v2_grpc:V2Grpc",
    "json": "serving.traffic.remotes.json_service:JsonService",
    **{name: place for plugin in PLUGINS for name, place in plugin.remotes.items()},
}
KEEP_SEQUENCES = ("v2", "v2-grpc")  # protocols that send the sequence parameters of a request


def make_protocol(remote: Remote, config: ModelConfig, access: RemoteAccess, memory: RequestMemory) -> RemoteProtocol:
    """Return the client for a remote model. Raises INVALID_ARG if its protocol cannot carry this model."""
    place = PROTOCOLS.get(remote.protocol)
    if place is None:
        raise invalid(f"expected 'protocol' to be one of {', '.join(PROTOCOLS)}, got '{remote.protocol}'")
    make: Make = imported(place)
    try:
        return make(remote, config, access, memory)
    except RepositoryError as error:
        raise invalid(error.message) from None
