"""TorchServe's inference and metrics APIs on the real core, in an event loop of a thread of their own."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from serving.cli.options import Options
from serving.cli.torchserve_options import TorchServeOptions
from serving.frontends.grpc_server import GrpcServer
from serving.frontends.http1.context import Context
from serving.frontends.http1.listener import Listener
from serving.frontends.http1.routes import RouteTable
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.torchserve.api_description import INFERENCE, METRICS
from serving.frontends.torchserve.grpc_inference import GrpcInferenceApi, inference_methods
from serving.frontends.torchserve.inference import InferenceApi
from serving.frontends.torchserve.metrics import InferenceMetrics
from serving.frontends.torchserve.metrics_page import MetricsPage
from serving.frontends.torchserve.replies import StandingHeaders
from serving.frontends.torchserve.routes import ERROR_REPLIES, description_routes, inference_routes, metrics_routes
from serving.frontends.torchserve.targets import Targets
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
        listeners: list[Listener | GrpcServer] = []
        self.server = server = InferenceServer(self._options)
        try:
            await server.start()
            side = TorchServeSide(server, self._torchserve)
            headers = StandingHeaders(side.options.cors_allowed_origin, side.options.cors_allowed_methods)
            metrics = InferenceMetrics()
            targets = Targets(server, metrics)
            api = InferenceApi(side, targets, headers, metrics)
            page = MetricsPage(side, metrics)
            tables = (
                [*description_routes(INFERENCE), *inference_routes(api)],
                [*description_routes([METRICS]), *metrics_routes(page)],
            )
            addresses = []
            for routes in tables:
                table = RouteTable(routes, None, side.options.max_request_size, ERROR_REPLIES)
                authoriser = Authoriser.from_options(self._options, "http")
                context = Context(authoriser, server.request_memory, standing=api.standing)
                listeners.append(Listener(table, context))
                addresses.append("{}:{}".format(*await listeners[-1].start("127.0.0.1", 0)))
            self.http, self.metrics = addresses
            grpc_api = GrpcInferenceApi(side, targets, headers)
            grpc = GrpcServer(
                server, self._options, Authoriser.from_options(self._options, "grpc"), inference_methods(grpc_api)
            )
            listeners.append(grpc)
            await grpc.start()
            self.grpc = "{}:{}".format(*grpc.address)
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        await self._stop.wait()
        await server.drain(10)
        for listener in listeners:
            await listener.close()


@contextlib.contextmanager
def apis(repository: Path, **options: Any) -> Iterator[Apis]:
    """options: TorchServe's own."""
    own = Options(model_repository=(repository,), grpc_address="127.0.0.1", grpc_port=0)
    running = Apis(own, TorchServeOptions(**options))
    try:
        yield running
    finally:
        running.close()
