"""Inference over REST: forwards requests to a server, and streams the responses of decoupled models."""

from collections.abc import AsyncIterator
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from dashboard.access.authorisation import Actor, Right, require_inference
from dashboard.models import Server
from dashboard.servers.client import ServerClient, ServerConnections
from dashboard.servers.fair_shares import async_inference_slot, inference_slot
from dashboard.servers.selectors import server_asked
from dashboard.servers.services import LOCAL
from dashboard.servers.streaming import Part, parts_of, request_of
from dashboard.shared.client_gone import go_on
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.web.rest.endpoint import Endpoint, at, data_of
from dashboard.web.rest.lines import LinesRenderer, line, lines_response
from dashboard.web.rest.parsers import RawParser, read_body
from repository.core.errors import InvalidExample
from repository.core.golden import read_request
from repository.core.tensors import tensor_json

MAX_BODY_BYTES = 64 << 20
_REQUEST_HEADERS = ("Content-Type", "Content-Encoding", "Inference-Header-Content-Length")
_RESPONSE_HEADERS = ("content-type", "inference-header-content-length")
_SERVER = OpenApiParameter("server", str, description=f"The server that gets the request; by default {LOCAL}.")


def _server(request: Request) -> Server:
    return server_asked(request.query_params.get("server", ""))


@at("models/<str:name>/infer", "api_model_infer")
@at("models/<str:name>/versions/<str:version>/infer", "api_version_infer")
class Infer(Endpoint):
    connections = ServerConnections()
    rights = {"POST": Right.INFER}
    max_body_bytes = MAX_BODY_BYTES
    parser_classes = [RawParser]

    @extend_schema(
        parameters=[_SERVER],
        request={"application/json": OpenApiTypes.OBJECT, "application/octet-stream": OpenApiTypes.BINARY},
        responses=OpenApiTypes.OBJECT,
    )
    def post(self, request: Request, name: str, version: str = "") -> HttpResponse:
        """Forwards an inference request of the KServe V2 protocol to a server, and returns its answer."""
        require_inference(self.actor, name)
        headers = {key: request.headers[key] for key in _REQUEST_HEADERS if key in request.headers}
        body = read_body(request, self.max_body_bytes)
        client = ServerClient(_server(request), self.connections, self.actor.person)
        with inference_slot(self.actor):
            go_on()  # the client may have gone while the request waited for its slot
            answer = client.infer_raw(name, body, headers, version=version)
        response = HttpResponse(answer.body, status=answer.status)
        for key in _RESPONSE_HEADERS:
            if key in answer.headers:
                response[key] = answer.headers[key]
        return response


class InferStreamSerializer(serializers.Serializer[Any]):
    """A request in the form of an example, which is V2's JSON with base64 for bytes that JSON cannot carry."""

    inputs = serializers.ListField(child=serializers.DictField())
    parameters = serializers.DictField(required=False, default=dict)


@at("models/<str:name>/infer_stream", "api_model_infer_stream")
@at("models/<str:name>/versions/<str:version>/infer_stream", "api_version_infer_stream")
class InferStream(Endpoint):
    rights = {"POST": Right.INFER}
    renderer_classes = [JSONRenderer, LinesRenderer]
    max_body_bytes = MAX_BODY_BYTES

    @extend_schema(
        parameters=[_SERVER],
        request=InferStreamSerializer,
        responses={(200, "application/x-ndjson"): OpenApiTypes.STR},
    )
    def post(self, request: Request, name: str, version: str = "") -> StreamingHttpResponse:
        """Sends a request to a decoupled model, and answers with a line of JSON for each response as it arrives.

        A line has `outputs`, `parameters` and `model_version`; after an error the last line has `error`.
        """
        require_inference(self.actor, name)
        try:
            given = read_request(data_of(request, InferStreamSerializer))
        except InvalidExample as error:
            raise Invalid(error.message) from None
        asked = request_of(name, version, given.inputs, given.parameters)
        return lines_response(_lines(parts_of(_server(request), asked, self.actor.person), self.actor))


async def _lines(parts: AsyncIterator[Part], actor: Actor) -> AsyncIterator[bytes]:
    try:
        async with async_inference_slot(actor):
            async for part in parts:
                yield line({"error": part.error} if part.error else _part_json(part))
    except DashboardError as error:
        yield line({"error": error.message})


def _part_json(part: Part) -> dict[str, object]:
    return {
        "model_version": part.version,
        "parameters": part.parameters,
        "outputs": [tensor_json(tensor) for tensor in part.outputs],
    }
