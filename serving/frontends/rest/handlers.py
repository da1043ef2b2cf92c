"""The handlers of V2 routes for the server, its models and its model repository.

Source: KServe V2 REST; Triton, docs/protocol/extension_{statistics,model_configuration,model_repository}.md.
"""

import binascii

from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import invalid, unsupported
from serving.core.message_json import message_to_json
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import STATUS, Reply, encodable, json_reply
from serving.frontends.rest.golden import PARAMETER as GOLDEN
from serving.frontends.rest.golden import read_checks
from serving.frontends.rest.json_body import JsonObject, json_object, with_json
from serving.frontends.shared.worker_threads import checkpoint, in_thread
from serving.models.golden_requests import GoldenCheck
from serving.models.load_report import LoadStopped
from serving.models.repository_index import IndexRow
from serving.server.inference_server import InferenceServer
from serving.telemetry.statistics import fill_statistics

_BASE64_PIECE = 1 << 20  # characters, a multiple of 4


def server_metadata(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.metadata()))


def server_live(server: InferenceServer, exchange: Exchange) -> Reply:
    return _ready_reply(server.live(), "the server is not live")


async def server_ready(server: InferenceServer, exchange: Exchange) -> Reply:
    ready = await server.confirm_ready()
    names = sorted(name for kind in server.unready_models().values() for name in kind) if ready else []
    if names:  # another answer than that of a server whose models all serve
        return json_reply({"ready": True, "unready_models": names})
    why = "" if ready else server.unready_because()
    return _ready_reply(ready, "the server is not ready" + (why and f": {why}"))


def confirm_unloads(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply({"models": server.confirm_unloads()})


async def model_ready(server: InferenceServer, exchange: Exchange) -> Reply:
    name, version = _model(exchange)
    ready = await server.confirm_model_ready(name, version)
    why = "" if ready else server.unready_reason(name, version)
    return _ready_reply(ready, f"model '{name}' is not ready" + (why and f": {why}"))


def model_metadata(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.model_metadata(*_model(exchange))))


def model_config(server: InferenceServer, exchange: Exchange) -> Reply:
    return json_reply(message_to_json(server.model_config(*_model(exchange))))


def model_statistics(server: InferenceServer, exchange: Exchange) -> Reply:
    """Answer with Triton's message. The row of a version also has its release, if it has one."""
    found = server.version_statistics(*_model(exchange))
    rows = []
    for statistics in found:
        message = pb.ModelStatistics()
        fill_statistics(message, statistics)
        release = statistics.status.release
        rows.append(message_to_json(message, unset_messages=True) | ({} if release is None else {"release": release}))
    return json_reply({"model_stats": rows})


async def repository_index(server: InferenceServer, exchange: Exchange) -> Reply:
    _default_repository(exchange)
    ready = json_object(exchange).get("ready", False)
    if not isinstance(ready, bool):
        raise invalid("invalid value for 'ready': expected a boolean")
    return json_reply([_index_row(row) for row in await server.list_repositories(ready)])


def _index_row(row: IndexRow) -> JsonObject:
    """Return a row as JSON, without its empty fields."""
    if not row.state:
        return {"name": row.name}
    absent = {name for name in ("release", "aliases", "loading", "new") if not getattr(row, name)}
    shown = row._asdict() | {"loading": row.loading and row.loading._asdict()}
    return {name: value for name, value in shown.items() if name not in absent}


@with_json
async def load_model(server: InferenceServer, exchange: Exchange, body: JsonObject) -> Reply:
    """Load a model, and answer with the steps of the load. Triton's clients read only the status."""
    _default_repository(exchange)
    exchange.body = b""
    parameters = _parameters(body)
    model, config = exchange.route.params["model"], ""
    files = {}
    golden: list[GoldenCheck] = []
    for key, value in parameters.items():
        if key not in ("config", GOLDEN) and not key.startswith("file:"):
            raise invalid(
                f"unrecognised load parameter '{key}'; expected 'config', 'file:<version>/<name>' or '{GOLDEN}'"
            )
        if not isinstance(value, str):
            raise invalid(f"load parameter '{key}' must be a string")
        if key == "config":
            config = value
        elif key == GOLDEN:
            golden = await in_thread(read_checks, value, model)
        else:
            files[key] = await in_thread(_base64, key, value)
    try:
        report = await server.load_model(model, config, files or None, golden)
    except LoadStopped as error:
        body = {"error": encodable(error.message), "reason": encodable(error.reason), **error.report.as_json()}
        return json_reply(body, STATUS[error.code])
    return json_reply(report.as_json())


async def break_off_load(server: InferenceServer, exchange: Exchange) -> Reply:
    server.break_off_load(exchange.route.params["model"])
    return Reply()


async def unload_model(server: InferenceServer, exchange: Exchange) -> Reply:
    _default_repository(exchange)
    dependents = _parameters(json_object(exchange)).get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise invalid("unload parameter 'unload_dependents' must be a boolean")
    await server.unload_model(exchange.route.params["model"], dependents)
    return Reply()


def _ready_reply(ready: bool, otherwise: str) -> Reply:
    """Return an empty answer if ready, otherwise the reason with status 400, as in Triton."""
    return Reply() if ready else json_reply({"error": otherwise}, 400)


def _model(exchange: Exchange) -> tuple[str, str]:
    params = exchange.route.params
    return params.get("model", ""), params.get("version", "")


def _default_repository(exchange: Exchange) -> None:
    if "repository" in exchange.route.params:
        raise unsupported("'repository_name' specification is not supported")


def _parameters(body: JsonObject) -> JsonObject:
    parameters = body.get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid("expected 'parameters' to be a JSON object")
    return parameters


def _base64(key: str, value: str) -> bytes:
    """Decode a load parameter in pieces, so that other threads can run between them."""
    content = bytearray()
    try:
        for start in range(0, len(value), _BASE64_PIECE):
            checkpoint()
            piece = binascii.a2b_base64(value[start : start + _BASE64_PIECE], strict_mode=True)
            if start + _BASE64_PIECE < len(value) and len(piece) < _BASE64_PIECE // 4 * 3:
                raise ValueError  # padding before the end
            content += piece
    except (binascii.Error, ValueError):
        raise invalid(f"load parameter '{key[:200]}' is not valid base64") from None
    return bytes(content)
