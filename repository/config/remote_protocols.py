"""The protocols in which a rollout may call a model on another server, declared in one table.

The server imports the client of each protocol by its name (serving.traffic.remotes.protocols). The form of a rollout offers
these protocols.
"""

from typing import Literal, NamedTuple


class RemoteProtocolKind(NamedTuple):
    """A protocol. title: the name that people use. bodies: whether a policy gives the form of its requests and responses."""

    name: str
    title: str
    bodies: Literal["", "optional", "required"] = ""


_DECLARED = (
    RemoteProtocolKind("v2", "V2 over HTTP"),
    RemoteProtocolKind("v2-grpc", "V2 over gRPC"),
    RemoteProtocolKind("torchserve", "TorchServe", "optional"),
    RemoteProtocolKind("json", "JSON over HTTP", "required"),
)
REMOTE_PROTOCOLS = {kind.name: kind for kind in _DECLARED}
WITH_BODIES = sorted((kind for kind in _DECLARED if kind.bodies), key=lambda kind: kind.bodies, reverse=True)
