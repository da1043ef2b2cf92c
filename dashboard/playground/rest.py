"""Inference over REST: a request is passed on to the bundled server."""

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from dashboard.access.authorisation import Right, require_inference
from dashboard.servers.client import ServerClient, ServerConnections
from dashboard.servers.selectors import server_get
from dashboard.servers.services import LOCAL
from dashboard.web.rest.endpoint import Endpoint
from dashboard.web.rest.parsers import RawParser, read_body

_REQUEST_HEADERS = ("Content-Type", "Content-Encoding", "Inference-Header-Content-Length")
_RESPONSE_HEADERS = ("content-type", "inference-header-content-length")


class Infer(Endpoint):
    connections = ServerConnections()
    rights = {"POST": Right.INFER}
    max_body_bytes = 64 << 20
    parser_classes = [RawParser]

    @extend_schema(
        request={"application/json": OpenApiTypes.OBJECT, "application/octet-stream": OpenApiTypes.BINARY},
        responses=OpenApiTypes.OBJECT,
    )
    def post(self, request: Request, name: str, version: str = "") -> HttpResponse:
        """Passes an inference request of the KServe V2 protocol on to the bundled server, and its answer back."""
        require_inference(self.actor, name)
        headers = {key: request.headers[key] for key in _REQUEST_HEADERS if key in request.headers}
        body = read_body(request, self.max_body_bytes)
        answer = ServerClient(server_get(LOCAL), self.connections).infer_raw(name, body, headers, version=version)
        response = HttpResponse(answer.body, status=answer.status)
        for key in _RESPONSE_HEADERS:
            if key in answer.headers:
                response[key] = answer.headers[key]
        return response
