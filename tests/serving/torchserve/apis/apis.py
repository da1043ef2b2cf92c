"""TorchServe's inference and metrics APIs on the real core, in an event loop of a thread of their own."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from repository.torchserve.options import ListenAddress, TorchServeOptions
from serving.cli.options import Options, SourceOptions
from serving.server.inference_server import InferenceServer
from serving.torchserve.listeners import listeners
from serving.torchserve.registry.source import TorchServeSource
from tests.serving.frontends.frontends_in_thread import Listener, ServerInThread


class Apis(ServerInThread):
    """`http`, `metrics` and `grpc` are "host:port"."""

    def __init__(self, options: Options, torchserve: TorchServeOptions) -> None:
        self._torchserve = torchserve
        super().__init__(options)
        names = ("inference", "metrics", "grpc_inference")
        self.http, self.metrics, self.grpc = (self.address[f"torchserve_{one}"] for one in names)

    def listeners(self, server: InferenceServer) -> Mapping[str, Listener]:
        source = SourceOptions(source="", frontends="", settings=self._torchserve)
        options = dataclasses.replace(self._options, source=source)
        found = listeners(TorchServeSource(server, options), options)
        return {name: one.frontend for name, one in found.items()}


DEFAULTS: dict[str, Any] = {
    "metrics_mode": "prometheus",  # rather than files
    "token_auth": False,
    **{f"{name}_address": ListenAddress() for name in ("inference", "management", "metrics")},
    **{f"grpc_{name}_port": 0 for name in ("inference", "management")},
}


@contextlib.contextmanager
def apis(repository: Path, auth_file: Path | None = None, **options: Any) -> Iterator[Apis]:
    """options: TorchServe's own."""
    running = Apis(
        Options(model_repository=(repository,), auth_file=auth_file), TorchServeOptions(**DEFAULTS | options)
    )
    try:
        yield running
    finally:
        running.close()
