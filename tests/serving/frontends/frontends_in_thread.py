"""Core and frontends in an event loop of a thread of their own, so that a test reaches both the server's objects and, with
stock clients that block, its ports."""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import uvloop

from serving.cli.options import Options
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http_server import HttpServer
from serving.frontends.shared.authorisation import Authoriser
from serving.server.inference_server import InferenceServer
from tests.support.serving_process import PATIENCE_S


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]: ...

    async def start(self) -> None: ...
    async def close(self) -> None: ...


class ServerInThread(ABC):
    """`address` has "host:port" of each listener by its name."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    def listeners(self, server: InferenceServer) -> Mapping[str, Listener]:
        """Make the frontends."""

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = InferenceServer(self._options)
        listeners = self.listeners(self.server)
        try:
            await self.server.start()
            for listener in listeners.values():
                await listener.start()
            self.address = {name: "{}:{}".format(*listener.address) for name, listener in listeners.items()}
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        await self._stop.wait()
        await self.server.drain(10)
        for listener in listeners.values():
            await listener.close()


class Frontends(ServerInThread):
    """`http` and `grpc` are "host:port"."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.http, self.grpc = self.address["http"], self.address["grpc"]

    def listeners(self, server: InferenceServer) -> Mapping[str, Listener]:
        options = self._options
        self.grpc_server = GrpcServer(server, options, Authoriser.from_options(options, "grpc"))
        return {
            "http": HttpServer(server, options, Authoriser.from_options(options, "http")),
            "grpc": self.grpc_server,
        }


@contextlib.contextmanager
def frontends(repository: Path, **options: Any) -> Iterator[Frontends]:
    settings = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1", "http_port": 0, "grpc_port": 0} | options
    running = Frontends(Options(model_repository=(repository,), **settings))
    try:
        yield running
    finally:
        running.close()
