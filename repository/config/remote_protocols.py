"""The protocols in which a rollout may ask a model on another server, declared in one table.

The server imports what speaks each by its name (serving.traffic.remotes.protocols); the form of a rollout offers them.
"""

from typing import Literal, NamedTuple


class RemoteProtocolKind(NamedTuple):
    """A protocol. title: as people call it. bodies: whether a policy has the `request` that is sent and the `response`."""

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
