"""TorchServe's management API: register, scale, describe, list, set the default version, unregister; and tokens.

Each handler reads the request, calls the registrations, and answers. Source: docs/management_api.md of TorchServe 0.12.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from repository.torchserve.version_settings import Registering
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.http1.routes import ANY, Route
from serving.torchserve.apis.api_description import describe_managing
from serving.torchserve.apis.authorisation import MANAGEMENT_GROUP as GROUP
from serving.torchserve.apis.authorisation import TOKEN_GROUP
from serving.torchserve.apis.replies import json_reply, status_reply
from serving.torchserve.registry.customized import customized_metadata
from serving.torchserve.registry.errors import TorchServeError, bad_request, no_resource, not_allowed
from serving.torchserve.registry.registrations import Outcome, Registrations
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.registry.tokens import TokenType, refused

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_MOST = 2**31 - 1


# -- the list, and registering -----------------------------------------------------------------------------------------
def list_models(source: TorchServeSource, exchange: Exchange) -> Reply:
    query = Query(exchange.head.query)
    return json_reply(source.descriptions.page(query.integer("limit", 100), query.integer("next_page_token", 0)))


async def register_model(source: TorchServeSource, exchange: Exchange) -> Reply:
    registrations = changeable(source)
    mime = exchange.head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if mime == "application/json":
        return _replied(await registrations.register(asked_in_json(bytes(exchange.body))))
    return _replied(await registrations.register(asked_in_query(Query(exchange.head.query))))


def asked_in_query(query: "Query") -> Registering:
    return Registering(
        url=query.text("url"),
        model_name=query.text("model_name") or "",
        runtime=query.text("runtime") or "",
        handler=query.text("handler") or "",
        batch_size=query.number("batch_size"),
        max_batch_delay_ms=query.number("max_batch_delay"),
        initial_workers=query.number("initial_workers"),
        response_timeout_s=query.number("response_timeout"),
        startup_timeout_s=query.number("startup_timeout"),
        synchronous=query.boolean("synchronous", True),
    )


def asked_in_json(body: bytes) -> Registering:
    """Read a registration in JSON. As in TorchServe, JSON is by default not synchronous and without workers."""
    fields = json_object(body)
    return Registering(
        url=text_of(fields, "url"),
        model_name=text_of(fields, "model_name") or "",
        runtime=text_of(fields, "runtime") or "",
        handler=text_of(fields, "handler") or "",
        batch_size=whole_of(fields, "batch_size"),
        max_batch_delay_ms=whole_of(fields, "max_batch_delay"),
        initial_workers=whole_of(fields, "initial_workers") or 0,
        response_timeout_s=whole_of(fields, "response_timeout"),
        startup_timeout_s=whole_of(fields, "startup_timeout"),
        synchronous=str(fields.get("synchronous", False)).lower() == "true",
    )


# -- one model ---------------------------------------------------------------------------------------------------------
async def describe_model(source: TorchServeSource, exchange: Exchange) -> Reply:
    name, version = _model_and_version(exchange)
    customized = Query(exchange.head.query).boolean("customized", False)
    return json_reply(await described(source, name, version, customized, exchange.head.as_sent()))


async def described(
    source: TorchServeSource, name: str, version: str | None, customized: bool, headers: Iterable[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """Return the description of versions. customized: whether to add the handler's own metadata for a single version."""
    rows = source.descriptions.describe(name, version)
    if customized and version != "all":
        number = source.descriptions.number(name, version)
        if number is None:
            raise TorchServeError(
                503,
                "ServiceUnavailableException",
                f'Model "{name}" has no worker to serve describe request. Please use scale workers API to add workers.',
            )
        rows[0]["customizedMetadata"] = await customized_metadata(source.server, name, number, headers)
    return rows


async def scale_model(source: TorchServeSource, exchange: Exchange) -> Reply:
    name, version = _model_and_version(exchange)
    query = Query(exchange.head.query)
    least = query.integer("min_worker", 1)
    most = query.integer("max_worker", least)
    version = version or query.text("model_version")
    return _replied(await manageable(source).scale(name, version, least, most, query.boolean("synchronous", False)))


async def unregister_model(source: TorchServeSource, exchange: Exchange) -> Reply:
    return _replied(await changeable(source).unregister(*_model_and_version(exchange)))


async def set_default(source: TorchServeSource, exchange: Exchange) -> Reply:
    name, version = _model_and_version(exchange)
    return _replied(await manageable(source).set_default(name, version or ""))


def model_ready(source: TorchServeSource, exchange: Exchange) -> Reply:
    """Answer whether a model is ready, in KServe's form."""
    name = exchange.route.params["model"].partition(":")[0]
    workers = source.descriptions.describe(name, None)[0]["workers"]
    return json_reply({"name": name, "ready": any(worker["status"] == "READY" for worker in workers)})


# -- tokens ------------------------------------------------------------------------------------------------------------
def renew_token(source: TorchServeSource, exchange: Exchange) -> Reply:
    """Make a new key, which is written to the key file and never sent in an answer."""
    if source.tokens is None:
        raise no_resource()
    kind = Query(exchange.head.query).text("type")
    if kind not in (TokenType.INFERENCE.value, TokenType.MANAGEMENT.value):
        raise refused("Authentication")
    source.tokens.renew(TokenType(kind))
    return Reply(200, (b"\n",), "application/json")


def describe_api(source: TorchServeSource, exchange: Exchange) -> Reply:
    """Answer with the description of how to manage a model, if the model exists."""
    source.descriptions.describe(*_model_and_version(exchange))
    return json_reply(describe_managing(exchange.route.params["model"]))


MODEL = "/models/{model}[/{version}]"
ROUTES = (
    Route("GET", "/models", GROUP, list_models),
    Route("POST", "/models", GROUP, register_model),
    Route("GET", MODEL, GROUP, describe_model),
    Route("PUT", MODEL, GROUP, scale_model),
    Route("DELETE", MODEL, GROUP, unregister_model),
    Route("OPTIONS", MODEL, GROUP, describe_api),
    Route("PUT", "/models/{model}/{version}/set-default", GROUP, set_default),
    Route("GET", "/v1/models/{model}", GROUP, model_ready),
    Route(ANY, "/token", TOKEN_GROUP, renew_token),
)


# -- reading and answering ---------------------------------------------------------------------------------------------
class Query:
    """The parameters of a query. If a parameter is repeated, the first one counts. A malformed number counts as absent."""

    def __init__(self, query: str) -> None:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100) if query.count("&") < 100 else []
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name, value)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str) -> int | None:
        text = self._values.get(name, "")
        value = int(text) if _INTEGER.fullmatch(text) else None
        return value if value is not None and -_MOST <= value <= _MOST else None

    def integer(self, name: str, default: int) -> int:
        value = self.number(name)
        return default if value is None else value

    def boolean(self, name: str, default: bool) -> bool:
        return default if name not in self._values else self._values[name].lower() == "true"


def _model_and_version(exchange: Exchange) -> tuple[str, str | None]:
    params = exchange.route.params
    return params["model"], params.get("version")


def manageable(source: TorchServeSource) -> Registrations:
    """Return the registrations. Refuse the call if a model repository is served instead."""
    if source.registrations is None:
        raise TorchServeError(
            405,
            "MethodNotAllowedException",
            "The models of this server come from its model repository: change them there, or over the dashboard",
        )
    return source.registrations


def changeable(source: TorchServeSource) -> Registrations:
    """Return the registrations. Refuse the call unless models may be registered and unregistered."""
    registrations = manageable(source)
    if not source.options.enable_model_api:
        raise not_allowed()
    return registrations


def _replied(outcome: Outcome) -> Reply:
    return status_reply(outcome.text, outcome.code)


def json_object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise TorchServeError(400, "JsonSyntaxException", f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise TorchServeError(400, "JsonSyntaxException", "the body is not a JSON object")
    return fields


def text_of(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise bad_request(f"'{key}' must be a text")


def whole_of(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST):
        return value
    raise bad_request(f"'{key}' must be a whole number")
