"""What TorchServe's listeners serve: the server, its options, and what is managed through TorchServe's APIs."""

from dataclasses import dataclass

from serving.cli.torchserve_options import TorchServeOptions
from serving.server.inference_server import InferenceServer
from serving.torchserve.tokens import Tokens


@dataclass(slots=True)
class TorchServeSide:
    """`tokens` is None where nobody has to show one."""

    server: InferenceServer
    options: TorchServeOptions
    tokens: Tokens | None = None
