"""Routes of the logging and trace settings.

Source: Triton, docs/protocol/extension_{logging,trace}.md.
"""

from serving.core.errors import invalid
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply, json_reply
from serving.frontends.rest.json_body import json_object
from serving.server.inference_server import InferenceServer


def logging(server: InferenceServer, exchange: Exchange) -> Reply:
    if exchange.head.method == "POST":
        server.log_settings.update(json_object(exchange))
    return json_reply(server.log_settings.values())


def trace(server: InferenceServer, exchange: Exchange) -> Reply:
    model = exchange.route.params.get("model", "")
    if exchange.head.method == "POST":
        server.update_trace_settings(
            model, {name: _texts(name, value) for name, value in json_object(exchange).items()}
        )
    values = server.trace_values(model)
    return json_reply({name: value if name == "trace_level" else value[0] for name, value in values.items()})


def _texts(name: str, value: object) -> list[str] | None:
    """Return the values of a setting: a string, or an array of strings. null resets the setting, and becomes None."""
    texts = [value] if isinstance(value, str) else value
    if texts is not None and not (isinstance(texts, list) and all(isinstance(one, str) for one in texts)):
        raise invalid(f"expected trace setting '{name[:100]}' to be a string or an array of strings")
    return texts
