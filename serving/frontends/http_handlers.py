"""Handlers of every V2 route but inference: decode, call the server, encode."""

import base64
import binascii
from typing import Any

import orjson

from serving.errors import invalid, unsupported
from serving.frontends.http_exchange import Exchange
from serving.frontends.http_message import Reply, json_reply
from serving.message_json import message_to_json
from serving.server import InferenceServer


def server_metadata(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.metadata()))


def server_live(server: InferenceServer, exchange: Exchange) -> Reply:
    return _ready_reply(server.live(), "the server is not live")


async def server_ready(server: InferenceServer, exchange: Exchange) -> Reply:
    return _ready_reply(await server.confirm_ready(), "the server is not ready")


async def model_ready(server: InferenceServer, exchange: Exchange) -> Reply:
    name, version = _model(exchange)
    return _ready_reply(await server.confirm_model_ready(name, version), f"model '{name}' is not ready")


def model_metadata(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.model_metadata(*_model(exchange))))


def model_config(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.model_config(*_model(exchange))))


def model_statistics(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.model_statistics(*_model(exchange)), unset_messages=True))


def repository_index(server: InferenceServer, exchange: Exchange) -> Reply:
    _default_repository(exchange)
    ready = json_object(exchange).get("ready", False)
    if not isinstance(ready, bool):
        raise invalid("invalid value for 'ready': expected a boolean")
    models = []
    for model in server.repository_index(ready).models:
        entry = {"name": model.name}
        if model.state:
            entry |= {"version": model.version, "state": model.state, "reason": model.reason}
        models.append(entry)
    return json_reply(models)


async def load_model(server: InferenceServer, exchange: Exchange) -> Reply:
    _default_repository(exchange)
    parameters = _parameters(exchange)
    config = ""
    files = {}
    for key, value in parameters.items():
        if key != "config" and not key.startswith("file:"):
            raise invalid(f"unrecognised load parameter '{key}'; expected 'config' or 'file:<version>/<name>'")
        if not isinstance(value, str):
            raise invalid(f"load parameter '{key}' must be a string")
        if key == "config":
            config = value
        else:
            files[key] = _base64(key, value)
    await server.load_model(exchange.head.params["model"], config, files or None)
    return Reply()


async def unload_model(server: InferenceServer, exchange: Exchange) -> Reply:
    _default_repository(exchange)
    dependents = _parameters(exchange).get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise invalid("unload parameter 'unload_dependents' must be a boolean")
    await server.unload_model(exchange.head.params["model"], dependents)
    return Reply()


def _ready_reply(ready: bool, otherwise: str) -> Reply:
    """Triton answers "not ready" with 400."""
    return Reply() if ready else json_reply({"error": otherwise}, 400)


def _model(exchange: Exchange) -> tuple[str, str]:
    params = exchange.head.params
    return params.get("model", ""), params.get("version", "")


def _default_repository(exchange: Exchange) -> None:
    if "repository" in exchange.head.params:
        raise unsupported("'repository_name' specification is not supported")


def json_object(exchange: Exchange) -> dict[str, Any]:
    """The body as an object; an empty body is an empty object."""
    if not exchange.body:
        return {}
    try:
        value = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"failed to parse the request JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("expected the request body to be a JSON object")
    return value


def _parameters(exchange: Exchange) -> dict[str, Any]:
    parameters = json_object(exchange).get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid("expected 'parameters' to be a JSON object")
    return parameters


def _base64(key: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"load parameter '{key[:200]}' is not valid base64") from None
