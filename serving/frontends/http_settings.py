"""Routes of the logging settings. Source: Triton, docs/protocol/extension_logging.md."""

from serving.frontends.http_exchange import Exchange
from serving.frontends.http_handlers import json_object
from serving.frontends.http_message import Reply, json_reply
from serving.server import InferenceServer


def logging(server: InferenceServer, exchange: Exchange) -> Reply:
    if exchange.head.method == "POST":
        server.log_settings.update(json_object(exchange))
    return json_reply(server.log_settings.values())
