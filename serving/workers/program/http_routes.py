"""The worker's HTTP routes: the core's routes, with a handler that decodes infer requests and one that forwards all others."""

import asyncio
from functools import partial

from serving.frontends.http1.exchange import Exchange, HandlerResult
from serving.frontends.http1.routes import Route
from serving.frontends.http_server import ROUTES
from serving.frontends.rest import infer as rest
from serving.server.inference_server import InferenceServer
from serving.workers.program.core_client import NeedsCoreError
from serving.workers.program.http_relay import HttpRelay


def worker_routes(relay: HttpRelay) -> list[Route[InferenceServer]]:
    """Return the routes for a listener whose server is the CoreClient."""

    def infer(core: InferenceServer, exchange: Exchange) -> HandlerResult:
        """Infer over the link. Forward a request without a JSON header, because only the core knows the shape of its input."""
        if exchange.head.header_length == 0:
            return relay.answer(exchange)
        try:
            rest.infer(core, exchange, partial(_answer_late, relay))
        except NeedsCoreError:
            return relay.answer(exchange)
        return None

    def forward(core: InferenceServer, exchange: Exchange) -> HandlerResult:
        return relay.answer(exchange)

    return [route._replace(handler=infer if route.handler is rest.infer else forward) for route in ROUTES]


def _answer_late(relay: HttpRelay, exchange: Exchange, error: Exception) -> None:
    if isinstance(error, NeedsCoreError):
        exchange.task = asyncio.ensure_future(relay.answer(exchange))
    else:
        exchange.fail(error)
