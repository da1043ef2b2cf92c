"""The routes of TorchServe's inference and metrics APIs, and the KServe routes that TorchServe serves on the same port.

A listener may have several APIs. So each route is bound to its API, and ignores the frontend of the route table.
"""

from collections.abc import Callable, Sequence

from serving.frontends.http1.exchange import Exchange, HandlerResult
from serving.frontends.http1.message import ErrorReply, Reply
from serving.frontends.http1.message import error_reply as v2_error_reply
from serving.frontends.http1.routes import ANY, Route
from serving.frontends.rest import handlers as v2
from serving.frontends.rest.infer import infer
from serving.server.inference_server import InferenceServer
from serving.torchserve.apis.api_description import Operation, describe_apis, describe_model
from serving.torchserve.apis.authorisation import DESCRIPTION_GROUP
from serving.torchserve.apis.inference import InferenceApi
from serving.torchserve.apis.replies import error_reply, json_reply, status_reply
from serving.torchserve.registry.errors import no_resource, not_allowed
from serving.torchserve.telemetry.metrics_page import MetricsPage

# Beginning of a path -> the function that makes the error replies for such paths.
ERROR_REPLIES: dict[str, ErrorReply] = {"/v2": v2_error_reply, "": error_reply}
_V2_MODEL = "/v2/models/{model}[/versions/{version}]"
_V2_WORDS = (b'"inputs"', b'"shape"', b'"datatype"')  # in every request of a V2 client
V2Handler = Callable[[InferenceServer, Exchange], HandlerResult]


def bound(handle: Callable[[Exchange], HandlerResult]) -> Callable[[object, Exchange], HandlerResult]:
    """Return a route handler that ignores its first argument, the frontend, and passes the exchange to `handle`."""
    return lambda _, exchange: handle(exchange)


def description_routes(*apis: Sequence[Operation]) -> list[Route[object]]:
    """Return the routes that describe the APIs of a listener."""

    def root(exchange: Exchange) -> Reply:
        if exchange.head.method != "OPTIONS":
            raise not_allowed()
        return describe(exchange)

    def describe(exchange: Exchange) -> Reply:
        return json_reply(describe_apis(*apis))

    return [
        Route(ANY, "/", DESCRIPTION_GROUP, bound(root)),
        Route(ANY, "/api-description", DESCRIPTION_GROUP, bound(describe)),
    ]


def inference_routes(api: InferenceApi) -> list[Route[object]]:
    """Return the routes of the inference API, without the routes that describe it."""
    predict, explain, invoke = (bound(one) for one in (api.predict, api.explain, api.invoke))

    def described(exchange: Exchange) -> Reply:
        params = exchange.route.params
        api.targets.find(params["model"], params.get("version", ""), predicts=False)
        return json_reply(describe_model(params["model"]))

    def ping(exchange: Exchange) -> Reply:
        return status_reply("Healthy") if api.targets.healthy() else status_reply("Unhealthy", 500)

    rest = "{model}[/{version}[/{url_path*}]]"
    routes: list[Route[object]] = [
        Route(ANY, "/ping[/{rest*}]", "health", bound(ping)),
        Route(ANY, f"/predictions/{rest}", "inference", predict, large=True, encoded=True),
        Route(ANY, f"/explanations/{rest}", "inference", explain, large=True, encoded=True),
        *(
            Route("OPTIONS", f"/{start}/{rest}", "metadata", bound(described))
            for start in ("predictions", "explanations")
        ),
        Route(ANY, "/v1/models/{model}:predict", "inference", predict, large=True, encoded=True),
        Route(ANY, "/v1/models/{model}:explain", "inference", explain, large=True, encoded=True),
        Route(ANY, "/invocations", "inference", invoke, large=True, encoded=True),
        Route(ANY, "/models/{model}/invoke", "inference", invoke, large=True, encoded=True),
        *_kserve_routes(api, predict, explain),
        Route(ANY, "/{model}[/{version}]/predict", "inference", invoke, large=True, encoded=True),
    ]
    return routes


def _kserve_routes(
    api: InferenceApi,
    predict: Callable[[object, Exchange], HandlerResult],
    explain: Callable[[object, Exchange], HandlerResult],
) -> list[Route[object]]:
    """Return KServe's own routes, and V2 inference. With the envelope kservev2, handlers get V2 requests unchanged."""
    server = api.server

    def models(exchange: Exchange) -> Reply:
        return json_reply({"models": api.targets.models()})

    async def model_ready(exchange: Exchange) -> Reply:
        name = exchange.route.params["model"]
        api.targets.find(name, "", predicts=False)
        ready = await server.confirm_model_ready(name)
        return json_reply({"name": name, "ready": ready}, 200 if ready else 503)

    def unknown(exchange: Exchange) -> Reply:
        raise no_resource()

    def counted(exchange: Exchange) -> HandlerResult:
        if not _of_v2_client(exchange):
            return predict(server, exchange)
        infer(server, exchange)
        params = exchange.route.params
        for request in exchange.requests:
            if not request.finished:
                request.observe(api.metrics.series(params["model"], params.get("version", "")))
        return None

    async def ready(exchange: Exchange) -> Reply:
        found = await server.confirm_ready()
        return json_reply({"ready": found}, 200 if found else 503)

    def of_server(handle: V2Handler) -> Callable[[object, Exchange], HandlerResult]:
        return lambda _, exchange: handle(server, exchange)

    whole = api.options.service_envelope == "kservev2"
    return [
        Route("GET", "/v1/models", "metadata", bound(models)),
        Route(ANY, "/v1/models/{model}:{act}", "inference", bound(unknown)),
        Route("GET", "/v1/models/{model}", "health", bound(model_ready)),
        Route("GET", "/v2", "metadata", of_server(v2.server_metadata)),
        Route("GET", "/v2/health/live", "health", bound(lambda exchange: json_reply({"live": server.live()}))),
        Route("GET", "/v2/health/ready", "health", bound(ready)),
        Route(
            ANY,
            f"{_V2_MODEL}/infer",
            "inference",
            predict if whole else bound(counted),
            large=True,
            encoded=whole,
        ),
        Route(ANY, f"{_V2_MODEL}/explain", "inference", explain, large=True, encoded=True),
        Route("GET", _V2_MODEL, "metadata", of_server(v2.model_metadata)),
        Route("GET", f"{_V2_MODEL}/ready", "health", of_server(v2.model_ready)),
        Route("GET", f"{_V2_MODEL}/config", "model-config", of_server(v2.model_config)),
        Route("GET", f"{_V2_MODEL}/stats", "statistics", of_server(v2.model_statistics)),
    ]


def _of_v2_client(exchange: Exchange) -> bool:
    """Return whether a body is a V2 request. Other bodies go to the handler, as all bodies do in TorchServe."""
    if exchange.head.method != "POST":
        return False
    body = bytes(exchange.body)
    return exchange.head.header_length is not None or all(word in body for word in _V2_WORDS)


def metrics_routes(page: MetricsPage) -> list[Route[object]]:
    """Return the routes of the metrics API."""
    return [Route(ANY, "/metrics[/{rest*}]", "metrics", bound(page.show))]
