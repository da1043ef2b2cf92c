"""Captures over REST: starting, stopping and deleting one, its files, and who may read those of a model."""

from uuid import UUID

from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import CLIENT_DATA, Right
from dashboard.captures import serializers
from dashboard.captures.selectors import capture_file, capture_files_get, capture_get, captures
from dashboard.captures.services import capture_delete, capture_readers_set, capture_start, capture_stop
from dashboard.catalog.selectors import model_get
from dashboard.models import Model
from dashboard.shared.exceptions import NotFound
from dashboard.shared.repository_errors import repository_errors
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from repository.core.captures import unreadable

_CAPTURE = "models/<str:name>/captures/<uuid:pk>"


@at("models/<str:name>/captures", "api_captures")
class CaptureList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": CLIENT_DATA}

    @extend_schema(operation_id="models_captures_list", responses=serializers.CaptureSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The captures of a model, newest first, without what was kept."""
        return self.page(captures(model_get(name)), serializers.CaptureSerializer)

    @extend_schema(request=serializers.CaptureRequestSerializer, responses={201: serializers.CaptureSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Begins to keep a share of clients' requests with their answers. The server begins within seconds."""
        given = data_of(request, serializers.CaptureRequestSerializer)
        capture = capture_start(model=model_get(name), actor=self.actor, **given)
        return Response(serializers.CaptureSerializer(capture).data, status=201)


@at(_CAPTURE, "api_capture")
class CaptureDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": CLIENT_DATA}

    @extend_schema(responses=serializers.CaptureSerializer)
    def get(self, request: Request, name: str, pk: UUID) -> Response:
        """One capture, with what became of the requests."""
        return Response(serializers.CaptureSerializer(capture_get(model_get(name), pk)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, pk: UUID) -> Response:
        """Deletes a capture with all that was kept."""
        capture_delete(capture=capture_get(model_get(name), pk), actor=self.actor)
        return Response(status=204)


@at(f"{_CAPTURE}/stop", "api_capture_stop")
class CaptureStop(Endpoint):
    rights = {"POST": CLIENT_DATA}

    @fieldless(responses=serializers.CaptureSerializer)
    def post(self, request: Request, name: str, pk: UUID) -> Response:
        """Ends a capture. What it has kept stays."""
        capture = capture_stop(capture=capture_get(model_get(name), pk), actor=self.actor)
        return Response(serializers.CaptureSerializer(capture).data)


@at(f"{_CAPTURE}/files", "api_capture_files")
class CaptureFiles(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="models_captures_files_list", responses=serializers.CaptureFileSerializer(many=True))
    def get(self, request: Request, name: str, pk: UUID) -> Response:
        """The whole files of a capture, the oldest first."""
        return self.page(capture_files_get(capture_get(model_get(name), pk)), serializers.CaptureFileSerializer)


@at(f"{_CAPTURE}/files/<int:number>", "api_capture_file")
class CaptureFileContent(Endpoint):
    rights = {"GET": CLIENT_DATA}

    @extend_schema(responses={(200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY})
    def get(self, request: Request, name: str, pk: UUID, number: int) -> FileResponse:
        """One file as Parquet, by the number of its first request. Each reading has an audit entry."""
        found = capture_file(capture_get(model_get(name), pk), number, self.actor)
        try:
            content = found.path.open("rb")
        except FileNotFoundError:
            raise NotFound("the capture was deleted meanwhile") from None
        except OSError as error:
            with repository_errors():
                raise unreadable(error) from None
        response = FileResponse(
            content, as_attachment=True, filename=found.path.name, content_type="application/vnd.apache.parquet"
        )
        response["Cache-Control"] = "no-store"
        return response


@at("models/<str:name>/capture_readers", "api_capture_readers")
class CaptureReaders(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.ADMINISTER}

    @extend_schema(responses=serializers.ReadersSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The only people who may read the captures of a model; [] if all may who may operate."""
        return _readers(model_get(name))

    @extend_schema(request=serializers.ReadersSerializer, responses=serializers.ReadersSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Lets only these people read the captures of a model."""
        given = data_of(request, serializers.ReadersSerializer)
        return _readers(capture_readers_set(model=model_get(name), actor=self.actor, **given))


def _readers(model: Model) -> Response:
    return Response({"readers": sorted(one.get_username() for one in model.capture_readers.all())})
