"""The requests of a model that stood out, over REST: the slowest or the failed ones of a span, and failures by cause."""

import time

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import CLIENT_DATA, Right
from dashboard.catalog.selectors import model_get
from dashboard.catalog.serializers import NotedSerializer
from dashboard.metrics.noted import KEPT_S, SHOWN, Wanted, failure_causes, noted_requests
from dashboard.servers.selectors import server_get
from dashboard.shared.exceptions import Invalid
from dashboard.web.rest.endpoint import Endpoint, at

KINDS = ("slow", "failed")
MOST = 100
_HOUR = 3600


@at("models/<str:name>/requests", "api_model_requests")
class ModelRequests(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[
            OpenApiParameter("kind", str, enum=KINDS, description="By default failed."),
            OpenApiParameter("start", int, description="Unix seconds; by default one hour before the end."),
            OpenApiParameter("end", int, description="Unix seconds; by default now."),
            OpenApiParameter("version", int, description="By default all versions."),
            OpenApiParameter("server", str, description="By default all servers."),
            OpenApiParameter("cause", str, description="The `key` of a cause: only failed requests of it."),
            OpenApiParameter("limit", int, description=f"By default {SHOWN}, at most {MOST}."),
        ],
        responses=NotedSerializer,
    )
    def get(self, request: Request, name: str) -> Response:
        """The slowest requests or the newest failed ones of a span, and its failures by cause.

        Messages and causes may quote what clients sent: they are null without the right to operate.
        """
        params = request.query_params
        model = model_get(name)
        kind = params.get("kind", "failed")
        if kind not in KINDS:
            raise Invalid(f"expected 'kind' as {' or '.join(KINDS)}")
        end = _whole(request, "end", int(time.time()))
        start = _whole(request, "start", max(0, end - _HOUR))
        if not 0 < end - start <= KEPT_S:
            raise Invalid(f"expected a start before the end, at most {KEPT_S // 86400} days apart")
        version = _whole(request, "version", 0) if "version" in params else None
        server = server_get(params["server"]).name if "server" in params else ""
        limit = _whole(request, "limit", SHOWN)
        if not 0 < limit <= MOST:
            raise Invalid(f"expected 'limit' as a number from 1 to {MOST}")
        wanted = Wanted(model.name, start, end, version, server)
        causes = failure_causes(wanted)
        cause = next((one for one in causes if one.key == params.get("cause")), None)
        if cause is None and "cause" in params:
            raise Invalid("no failure of this 'cause' is in the span")
        rows = noted_requests(wanted, failed=kind == "failed", cause=cause, limit=limit)
        found = {"requests": rows, "causes": causes}
        return Response(NotedSerializer(found, context={"sees": self.actor.may(CLIENT_DATA)}).data)


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Invalid(f"expected '{name}' as a whole number")
    return int(text)
