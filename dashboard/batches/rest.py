"""Batch jobs over REST: make one, send its files, preview it, start it, and fetch the results."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.conf import settings
from django.http import StreamingHttpResponse
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.batches import serializers
from dashboard.batches.formats.table import Answer, Value
from dashboard.batches.selectors import batch_get, batch_jobs
from dashboard.batches.services import (
    Preview,
    batch_create,
    batch_file,
    batch_preview,
    batch_receive_chunk,
    batch_remove,
    batch_resume,
    batch_start,
    result_path,
)
from dashboard.jobs.serializers import JobSerializer
from dashboard.models import BatchFile, Job
from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.uploads.serializers import ChunkSerializer
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from dashboard.web.rest.parsers import RawParser, read_body
from repository.core.json_types import Json

_PIECE = 1 << 20  # bytes of a result that are read at a time
_TYPES = {"csv": "text/csv", "jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}


@at("batches", "api_batches")
class BatchList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.INFER}

    @extend_schema(
        operation_id="batches_list",
        parameters=[OpenApiParameter("model", str)],
        responses=serializers.BatchSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The caller's batch jobs, newest first; those of everybody with the right to operate."""
        return self.page(batch_jobs(self.actor, request.query_params.get("model", "")), serializers.BatchSerializer)

    @extend_schema(request=serializers.BatchRequestSerializer, responses={201: serializers.BatchSerializer})
    def post(self, request: Request) -> Response:
        """Makes a batch job. Send its files with PUT, in chunks, unless it reads a source; then preview and start it."""
        batch = batch_create(actor=self.actor, **data_of(request, serializers.BatchRequestSerializer))
        return Response(serializers.BatchSerializer(batch).data, status=201)


@at("batches/<uuid:pk>", "api_batch")
class BatchDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": Right.INFER}

    @extend_schema(responses=serializers.BatchSerializer)
    def get(self, request: Request, pk: UUID) -> Response:
        """One batch job, with its files and progress."""
        return Response(serializers.BatchSerializer(batch_get(pk, self.actor)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, pk: UUID) -> Response:
        """Removes the batch job, its files and its results."""
        batch_remove(batch=batch_get(pk, self.actor), actor=self.actor)
        return Response(status=204)


@at("batches/<uuid:pk>/files/<int:number>", "api_batch_file")
class BatchChunk(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.INFER}
    max_body_bytes = settings.UPLOAD_CHUNK_BYTES
    parser_classes = [RawParser]

    @extend_schema(responses=ChunkSerializer)
    def get(self, request: Request, pk: UUID, number: int) -> Response:
        """The number of received bytes of a file."""
        return _chunk(batch_file(batch_get(pk, self.actor), number))

    @extend_schema(
        parameters=[
            OpenApiParameter("offset", int, required=True),
            OpenApiParameter("X-Sha256", str, OpenApiParameter.HEADER, description="Of this chunk, in hex."),
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=ChunkSerializer,
    )
    def put(self, request: Request, pk: UUID, number: int) -> Response:
        """Appends a chunk, as an upload's. If the offset is wrong, the answer is 409, and `received` is the right offset."""
        offset = request.query_params.get("offset", "")
        if not offset.isdecimal() or len(offset) > 18:
            raise Invalid("expected ?offset= as a whole number of bytes")
        batch = batch_get(pk, self.actor)
        file = batch_receive_chunk(
            batch=batch,
            number=number,
            offset=int(offset),
            chunk=read_body(request, self.max_body_bytes),
            actor=self.actor,
            sha256=request.headers.get("X-Sha256", ""),
        )
        return _chunk(file)


@at("batches/<uuid:pk>/preview", "api_batch_preview")
class BatchPreview(Endpoint):
    rights = {"POST": Right.INFER}

    @extend_schema(request=serializers.BatchMappingSerializer, responses=serializers.BatchPreviewSerializer)
    def post(self, request: Request, pk: UUID) -> Response:
        """The first rows, the columns that fill the inputs, and the model's answers to these rows. Nothing is stored."""
        data = data_of(request, serializers.BatchMappingSerializer)
        preview = batch_preview(batch=batch_get(pk, self.actor), actor=self.actor, **data)
        return Response(serializers.BatchPreviewSerializer(_shown(preview)).data)


@at("batches/<uuid:pk>/start", "api_batch_start")
class BatchStart(Endpoint):
    rights = {"POST": Right.INFER}

    @extend_schema(request=serializers.BatchStartSerializer, responses={202: JobSerializer})
    def post(self, request: Request, pk: UUID) -> Response:
        """Starts the job: 202. Its rows are sent with less priority than those of clients. Cancel it as a job."""
        data = data_of(request, serializers.BatchStartSerializer)
        return _under_way(batch_start(batch=batch_get(pk, self.actor), actor=self.actor, **data))


@at("batches/<uuid:pk>/resume", "api_batch_resume")
class BatchResume(Endpoint):
    rights = {"POST": Right.INFER}

    @extend_schema(request=serializers.BatchResumeSerializer, responses={202: JobSerializer})
    def post(self, request: Request, pk: UUID) -> Response:
        """Continues a batch job that failed or was cancelled: a new job for the rows that have no answer yet."""
        data = data_of(request, serializers.BatchResumeSerializer)
        return _under_way(batch_resume(batch=batch_get(pk, self.actor), actor=self.actor, **data))


@at("batches/<uuid:pk>/files/<int:number>/result", "api_batch_result")
class BatchResult(Endpoint):
    rights = {"GET": Right.INFER}

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    def get(self, request: Request, pk: UUID, number: int) -> StreamingHttpResponse:
        """The result of a file: its rows in their order, with a column for each output, and `error`."""
        batch = batch_get(pk, self.actor)
        file = batch_file(batch, number)
        if file.result_bytes is None:
            raise NotFound("this file has no result yet")
        response = StreamingHttpResponse(_pieces(result_path(file)), content_type=_TYPES[batch.format])
        stem, dot, suffix = file.name.rpartition("/")[2].rpartition(".")
        response["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(f'{stem}_answered{dot}{suffix}')}"
        response["Content-Length"] = str(file.result_bytes)
        response["Cache-Control"] = "no-store"
        return response


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece


def _chunk(file: BatchFile) -> Response:
    headers = {"Upload-Offset": str(file.received), "Cache-Control": "no-store"}
    return Response({"received": file.received, "size": file.size}, headers=headers)


def _under_way(job: Job) -> Response:
    return Response(JobSerializer(job).data, status=202, headers={"Location": reverse("api_job", args=[job.pk])})


def _shown(preview: Preview) -> dict[str, Any]:
    answers: Sequence[Answer | None] = preview.answers or [None] * len(preview.rows)
    rows = [
        {
            "values": {name: _value(value) for name, value in row.values.items()},
            "answer": answer.values if answer is not None and not answer.error else None,
            "error": answer.error if answer is not None else row.fault,
        }
        for row, answer in zip(preview.rows, answers, strict=True)
    ]
    return {
        "columns": preview.columns,
        "inputs": preview.inputs,
        "outputs": preview.outputs,
        "version": preview.version,
        "rows": rows,
        "problems": preview.problems,
    }


def _value(value: Value) -> Json:
    """Return a value that JSON can carry: words for numbers that are not finite, text for anything else."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_value(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _value(one) for name, one in value.items()}
    return value if isinstance(value, bool | int | float | None) else str(value)
