"""TorchServe's inference and metrics APIs on the real core, in an event loop of a thread of their own."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from repository.torchserve.options import ListenAddress, TorchServeOptions
from serving.cli.options import Options
from serving.frontends.torchserve_server import TorchServeListeners
from serving.server.inference_server import InferenceServer
from serving.torchserve.side import TorchServeSide
from tests.support.serving_process import PATIENCE_S


class Apis:
    """`http`, `metrics` and `grpc` are "host:port"."""

    def __init__(self, options: Options, torchserve: TorchServeOptions) -> None:
        self._options = options
        self._torchserve = torchserve
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = server = InferenceServer(self._options)
        found = TorchServeListeners(TorchServeSide(server, self._torchserve), self._options)
        listeners = {**found.http(), **found.grpc()}
        try:
            await server.start()
            for listener in listeners.values():
                await listener.start()
            names = ("inference", "metrics", "grpc_inference")
            self.http, self.metrics, self.grpc = (
                "{}:{}".format(*listeners[f"torchserve_{one}"].address) for one in names
            )
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        await self._stop.wait()
        await server.drain(10)
        for listener in listeners.values():
            await listener.close()


DEFAULTS: dict[str, Any] = {
    "metrics_mode": "prometheus",  # rather than files
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
