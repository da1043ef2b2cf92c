"""Metrics history over REST."""

import time
from collections.abc import Mapping

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.metrics.backlog import backlog
from dashboard.metrics.exposition import MEDIA_TYPE
from dashboard.metrics.selectors import (
    metrics_history,
    metrics_instances,
    metrics_outages,
    metrics_series,
    metrics_servers,
    metrics_versions,
)
from dashboard.metrics.web_process import web_metrics
from dashboard.servers.selectors import servers_chosen
from dashboard.shared.exceptions import Invalid
from dashboard.web.rest.endpoint import Endpoint, at

_HOUR = 3600.0
_MONTH = 31 * 24 * _HOUR


@at("metrics", "api_metrics")
class Metrics(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[
            OpenApiParameter("environment", str, description="All its servers together; by default production."),
            OpenApiParameter("server", str, description="One server, in place of an environment."),
            OpenApiParameter("model", str, description="By default the servers as a whole."),
            OpenApiParameter("version", int, description="By default all versions together."),
            OpenApiParameter("each", bool, description="true: adds the series of each version, as `versions`."),
            OpenApiParameter("instances", bool, description="true: adds the series of each instance, as `instances`."),
            OpenApiParameter("servers", bool, description="true: adds the series of each server, as `servers`."),
            OpenApiParameter("start", float, description="Unix seconds; by default one hour ago."),
            OpenApiParameter("end", float, description="Unix seconds; by default now."),
        ],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request) -> Response:
        """History of requests, latency percentiles, batches, processes and GPUs, with the servers' `outages`.

        Of several servers, requests and histograms add up, and percentiles are of the sum. In an outage none answered.
        """
        params = request.query_params
        end = _number(params, "end", time.time())
        start = _number(params, "start", end - _HOUR)
        if not end - _MONTH <= start < end:
            raise Invalid("expected a start before the end, at most 31 days apart")
        chosen = {key: params.get(key, "") for key in ("server", "environment")}
        servers, name = servers_chosen(**chosen), params.get("model", "")
        version = int(_number(params, "version", 0)) or None
        each, instances = (bool(name) and params.get(apart) == "true" for apart in ("each", "instances"))
        read = None if each or instances else version
        history = metrics_history(servers=servers, start=start, end=end, model_name=name, version=read)
        series = metrics_series(history, version=version)
        if each:
            series["versions"] = metrics_versions(history)
        apart = {"instances": metrics_instances(history)} if instances else {}
        if params.get("servers") == "true":
            apart["servers"] = metrics_servers(history)
        return Response({**series, **apart, "outages": metrics_outages(servers=servers, start=start, end=end)})


def _number(params: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(params.get(name, default))
    except ValueError:
        raise Invalid(f"expected {name} as a number") from None
    if not 0 <= value < 1e12:
        raise Invalid(f"expected {name} as a number of seconds, not {value}")
    return value


class _TextRenderer(JSONRenderer):
    """Renders an error for a client that accepts only text."""

    media_type = "text/plain"


@at("backlog", "api_backlog")
class Backlog(Endpoint):
    rights = {"GET": Right.VIEW}
    renderer_classes = [JSONRenderer, _TextRenderer]

    @extend_schema(responses={(200, "text/plain"): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponse:
        """What waits in the dashboard and what its worker and `watch` do, as text for Prometheus."""
        return HttpResponse(backlog(), content_type=MEDIA_TYPE)


@at("web-metrics", "api_web_metrics")
class WebMetrics(Endpoint):
    rights = {"GET": Right.VIEW}
    renderer_classes = [JSONRenderer, _TextRenderer]

    @extend_schema(responses={(200, "text/plain"): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponse:
        """What the web process that answers does, as text for Prometheus: requests, WebSockets, feeds, sessions."""
        return HttpResponse(web_metrics(), content_type=MEDIA_TYPE)
