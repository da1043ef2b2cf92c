"""Core and frontends in an event loop of a thread of their own, so that a test reaches both the server's objects and, with
stock clients that block, its ports."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from serving.cli.options import Options
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http_server import HttpServer
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer
from tests.support.serving_process import PATIENCE_S


class Frontends:
    """`http` and `grpc` are "host:port"."""

    def __init__(self, options: Options) -> None:
        self._options = options
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
        options = self._options
        self.server = InferenceServer(options)
        http = HttpServer(self.server, options, Authoriser.from_options(options, "http"))
        grpc = self.grpc_server = GrpcServer(self.server, options, Authoriser.from_options(options, "grpc"))
        try:
            await self.server.start()
            await http.start()
            await grpc.start()
            self.http, self.grpc = ("{}:{}".format(*one.address) for one in (http, grpc))
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        await self._stop.wait()
        await self.server.drain(10)
        await http.close()
        await grpc.close()


@contextlib.contextmanager
def frontends(repository: Path, **options: Any) -> Iterator[Frontends]:
    settings = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1", "http_port": 0, "grpc_port": 0} | options
    running = Frontends(Options(model_repository=(repository,), **settings))
    try:
        yield running
    finally:
        running.close()
