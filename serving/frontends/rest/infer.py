"""POST .../infer: decodes the request and submits it to the server. InferResponder answers when the server calls it."""

import asyncio
from collections.abc import Callable

from serving.core.errors import invalid
from serving.core.in_flight import InFlightRequest, ReceiveTimes
from serving.frontends.http1.exchange import Exchange
from serving.frontends.rest.infer_request import decode, decode_raw
from serving.frontends.rest.infer_response import InferResponder, refuse_decoupled
from serving.frontends.rest.json_input import LARGE
from serving.frontends.shared.forwarded_headers import forward_headers
from serving.frontends.shared.worker_threads import in_thread
from serving.server.inference_server import InferenceServer


def infer(
    server: InferenceServer, exchange: Exchange, on_error: Callable[[Exchange, Exception], None] = Exchange.fail
) -> None:
    """Submit one request, whose responder answers the exchange. on_error: called if an error occurs after this returns."""
    received = exchange.received() if server.tracing else None
    if len(exchange.body) < LARGE:
        _submit_checked(server, exchange, _decode(server, exchange), received)
    else:
        exchange.task = asyncio.ensure_future(_infer_large(server, exchange, received, on_error))


async def _infer_large(
    server: InferenceServer, exchange: Exchange, received: ReceiveTimes, on_error: Callable[[Exchange, Exception], None]
) -> None:
    """Decode large JSON on a worker thread, so that it does not block the event loop."""
    try:
        request = await in_thread(_decode, server, exchange)
        exchange.task = None
        _submit_checked(server, exchange, request, received)
    except Exception as error:
        on_error(exchange, error)


def _decode(server: InferenceServer, exchange: Exchange) -> InFlightRequest:
    params = exchange.route.params
    model = params["model"]
    version = params.get("version", "")
    header_length = exchange.head.header_length
    if header_length == 0:
        asked, header = decode_raw(server.answering_config(model, version), exchange.binary, version)
    else:
        body = exchange.body
        if header_length is not None and header_length > len(body):
            raise invalid(f"inference header size should be in range (0, {len(body)}), got: {header_length}")
        asked, header = decode(body, exchange.binary, model, version, server.shared_memory)
    return InFlightRequest(asked, InferResponder(exchange, header))


def _submit_checked(
    server: InferenceServer, exchange: Exchange, request: InFlightRequest, received: ReceiveTimes
) -> None:
    forwarded = exchange.pipeline.context.forwarded
    if forwarded is not None:
        forward_headers(forwarded, exchange.head.as_sent(), request.asked)
    submit(server, exchange, received, request)
    if request.stream is not None:
        refuse_decoupled(exchange)


def submit(server: InferenceServer, exchange: Exchange, received: ReceiveTimes, *requests: InFlightRequest) -> None:
    """Submit requests to the server. This exchange gets their answers. received: when they came, if tracing is on."""
    exchange.body = exchange.binary = b""  # the tensors refer to the bytes that they need
    exchange.requests = requests
    for request in requests:
        if exchange.done:  # an earlier request has already failed
            return
        try:
            server.infer(request, "http", exchange.pipeline.transport, exchange.head.headers, received)
        finally:
            exchange.traced |= request.trace is not None
