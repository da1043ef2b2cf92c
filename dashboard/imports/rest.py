"""Imports over REST: the folders that may be imported, importing a folder or uploaded archives, continuing an import."""

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.imports import serializers
from dashboard.imports.services import checked_params, import_create, import_preview, import_resume
from dashboard.imports.sources import import_folders
from dashboard.jobs.selectors import job_get
from dashboard.jobs.serializers import JobSerializer
from dashboard.models import Job
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("imports/folders", "api_import_folders")
class ImportFolders(Endpoint):
    rights = {"GET": Right.UPLOAD_CODE}

    @extend_schema(operation_id="import_folders_list", responses=serializers.ImportFolderSerializer(many=True))
    def get(self, request: Request) -> Response:
        """TorchServe's folders that an administrator has allowed to be imported."""
        return self.page(import_folders(), serializers.ImportFolderSerializer)


@at("imports", "api_imports")
class ImportList(Endpoint):
    rights = {"POST": Right.UPLOAD_CODE}

    @extend_schema(
        request=serializers.ImportRequestSerializer,
        responses={200: serializers.ImportReportSerializer, 202: JobSerializer},
    )
    def post(self, request: Request) -> Response:
        """Imports a TorchServe model store: 202 with the job, whose `result` is the report so far. A dry run answers 200 with
        the report of what would be imported."""
        data = data_of(request, serializers.ImportRequestSerializer)
        dry_run = data.pop("dry_run")
        data["uploads"] = [str(pk) for pk in data["uploads"]]
        if dry_run:
            report = import_preview(params=checked_params(actor=self.actor, **data))
            return Response(serializers.ImportReportSerializer(report).data)
        return _under_way(import_create(actor=self.actor, **data))


@at("imports/<int:pk>/resume", "api_import_resume")
class ImportResume(Endpoint):
    rights = {"POST": Right.UPLOAD_CODE}

    @fieldless(responses={202: JobSerializer})
    def post(self, request: Request, pk: int) -> Response:
        """Continues an import that was cancelled or failed: a new job for the archives that are not imported yet."""
        return _under_way(import_resume(job=job_get(pk), actor=self.actor))


def _under_way(job: Job) -> Response:
    return Response(JobSerializer(job).data, status=202, headers={"Location": reverse("api_job", args=[job.pk])})
