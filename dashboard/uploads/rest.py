"""Uploads over REST: announce, send in chunks, complete, publish."""

from uuid import UUID

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.jobs.rest import after_job
from dashboard.jobs.serializers import JobSerializer
from dashboard.models import UploadFile
from dashboard.shared.exceptions import Invalid
from dashboard.uploads import serializers
from dashboard.uploads.conversion import conversion_start
from dashboard.uploads.fetching import upload_fetch, upload_fetch_again
from dashboard.uploads.offers import NO_IMPORTS, offers_of, unkept_promises
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.selectors import upload_get, uploads_open
from dashboard.uploads.services import (
    upload_add_files,
    upload_cancel,
    upload_complete,
    upload_create,
    upload_file,
    upload_receive_chunk,
)
from dashboard.versions.serializers import VersionSerializer
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from dashboard.web.rest.parsers import RawParser, read_body
from repository.config.document import Document


@at("uploads", "api_uploads")
class UploadList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.UPLOAD_DATA}
    max_body_bytes = 8 << 20  # the names of 10,000 files

    @extend_schema(operation_id="uploads_list", responses=serializers.UploadRowSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Uploads that can still be continued or published. The list has only the number of files of each upload."""
        return self.page(uploads_open(), serializers.UploadRowSerializer)

    @extend_schema(request=serializers.UploadRequestSerializer, responses={201: serializers.UploadSerializer})
    def post(self, request: Request) -> Response:
        """Announces files. Then send each with PUT, in chunks of at most chunk_bytes, and complete the upload.

        With `source` in place of `files`, a job fetches the files and completes the upload."""
        data = data_of(request, serializers.UploadRequestSerializer)
        if ("files" in data) == ("source" in data):
            raise Invalid("expected either files or a source")
        upload = (upload_fetch if "source" in data else upload_create)(actor=self.actor, **data)
        return Response(serializers.UploadSerializer(upload).data, status=201)


@at("uploads/<uuid:pk>", "api_upload")
class UploadDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": Right.UPLOAD_DATA}

    @extend_schema(responses=serializers.UploadSerializer)
    def get(self, request: Request, pk: UUID) -> Response:
        """One upload, with its state and the findings of the inspection."""
        return _upload(pk)

    @fieldless(responses={204: None})
    def delete(self, request: Request, pk: UUID) -> Response:
        """Cancels the upload and removes the received bytes."""
        upload_cancel(upload=upload_get(pk, with_files=False), actor=self.actor)
        return Response(status=204)


@at("uploads/<uuid:pk>/fetch", "api_upload_fetch")
class UploadFetch(Endpoint):
    rights = {"POST": Right.UPLOAD_DATA}

    @fieldless(responses={202: serializers.UploadSerializer})
    def post(self, request: Request, pk: UUID) -> Response:
        """Continues to fetch the files from the upload's source, if the job that fetched them failed or was cancelled."""
        upload_fetch_again(upload=upload_get(pk, with_files=False), actor=self.actor)
        return _upload(pk, status=202)


@at("uploads/<uuid:pk>/files", "api_upload_files")
class UploadFiles(Endpoint):
    rights = {"POST": Right.UPLOAD_DATA}
    max_body_bytes = 8 << 20

    @extend_schema(request=serializers.MoreFilesSerializer, responses={201: serializers.UploadSerializer})
    def post(self, request: Request, pk: UUID) -> Response:
        """Announces files that were missing from an upload that failed.

        `proposal.missing` names them. They get the next numbers, are sent in chunks, and the upload is completed again."""
        data = data_of(request, serializers.MoreFilesSerializer)
        upload = upload_add_files(upload=upload_get(pk, with_files=False), actor=self.actor, **data)
        return Response(serializers.UploadSerializer(upload).data, status=201)


@at("uploads/<uuid:pk>/files/<int:number>", "api_upload_file")
class UploadChunk(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.UPLOAD_DATA}
    max_body_bytes = settings.UPLOAD_CHUNK_BYTES
    parser_classes = [RawParser]

    @extend_schema(responses=serializers.ChunkSerializer)
    def get(self, request: Request, pk: UUID, number: int) -> Response:
        """The number of received bytes of a file; also by HEAD, in the header Upload-Offset."""
        return _chunk(upload_file(upload=upload_get(pk, with_files=False), number=number))

    @extend_schema(
        parameters=[
            OpenApiParameter("offset", int, required=True),
            OpenApiParameter("X-Sha256", str, OpenApiParameter.HEADER, description="Of this chunk, in hex."),
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=serializers.ChunkSerializer,
    )
    def put(self, request: Request, pk: UUID, number: int) -> Response:
        """Appends a chunk. If the offset is wrong, the answer is 409, and `received` is the right offset."""
        offset = request.query_params.get("offset", "")
        if not offset.isdecimal() or len(offset) > 18:
            raise Invalid("expected ?offset= as a whole number of bytes")
        upload = upload_get(pk, with_files=False)
        chunk = read_body(request, self.max_body_bytes)
        file = upload_receive_chunk(
            upload=upload,
            number=number,
            offset=int(offset),
            chunk=chunk,
            actor=self.actor,
            sha256=request.headers.get("X-Sha256", ""),
        )
        return _chunk(file)


@at("uploads/<uuid:pk>/complete", "api_upload_complete")
class UploadComplete(Endpoint):
    rights = {"POST": Right.UPLOAD_DATA}

    @fieldless(responses={202: serializers.UploadSerializer})
    def post(self, request: Request, pk: UUID) -> Response:
        """Queues the inspection after all bytes are sent. Its job, and then `proposal`, have the findings."""
        upload_complete(upload=upload_get(pk, with_files=False), actor=self.actor)
        return _upload(pk, status=202)


@at("uploads/<uuid:pk>/conversions", "api_upload_conversions")
class UploadConversions(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.UPLOAD_DATA}

    @extend_schema(responses=serializers.ConversionsSerializer)
    def get(self, request: Request, pk: UUID) -> Response:
        """The recipes that take the files of an upload, the best first, and what became of earlier conversions."""
        upload = upload_get(pk, with_files=False)
        found = {
            "recipes": offers_of(upload, self.actor),
            "imports": upload.conversion.get("imports", NO_IMPORTS),
            "unkept_promises": {str(promise): sentence for promise, sentence in unkept_promises().items()},
            "error": upload.conversion.get("error", ""),
            "lineage": upload.conversion.get("lineage", []),
            "parts": upload.conversion.get("parts", []),
        }
        return Response(serializers.ConversionsSerializer(found).data)

    @extend_schema(request=serializers.ConvertSerializer, responses={202: serializers.UploadSerializer})
    def post(self, request: Request, pk: UUID) -> Response:
        """Converts the files by a recipe, as a job. Then the upload has other files, which are inspected. If the conversion
        fails or is refused, the upload is as it was, and `error` has the reason. 409: a confirmation is missing. 403: the
        recipe runs code of the files, which needs a right."""
        data = data_of(request, serializers.ConvertSerializer)
        conversion_start(upload=upload_get(pk, with_files=False), actor=self.actor, **data)
        return _upload(pk, status=202)


@at("uploads/<uuid:pk>/publish", "api_upload_publish")
class UploadPublish(Endpoint):
    rights = {"POST": Right.UPLOAD_DATA}

    @extend_schema(
        request=serializers.PublishSerializer,
        responses={201: VersionSerializer, 202: JobSerializer},
    )
    def post(self, request: Request, pk: UUID) -> Response:
        """Publishes an inspected upload as a new version: 201 with the version. A large version is published by a job: 202 with
        the job, whose `result` names the version once it has `succeeded`. 409: the configuration was changed since
        `base_release`. 403: a right is missing; the message names it, and the file or field that needs it."""
        upload, data = upload_get(pk), data_of(request, serializers.PublishSerializer)
        text = data.pop("config_text", None)
        document = None if text is None else Document.read(text)
        job = upload_publish(upload=upload, actor=self.actor, document=document, **data)
        return after_job(job, lambda: Response(VersionSerializer(upload.versions.get()).data, status=201))


def _upload(pk: UUID, status: int = 200) -> Response:
    return Response(serializers.UploadSerializer(upload_get(pk)).data, status=status)


def _chunk(file: UploadFile) -> Response:
    headers = {"Upload-Offset": str(file.received), "Cache-Control": "no-store"}
    return Response({"received": file.received, "size": file.size}, headers=headers)
