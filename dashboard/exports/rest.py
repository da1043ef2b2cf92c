"""Exporting a release over REST."""

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.exports.sending import release_export
from dashboard.exports.serializers import ExportRequestSerializer
from dashboard.jobs.serializers import JobSerializer
from dashboard.releases.selectors import release_get
from dashboard.web.rest.endpoint import Endpoint, at, data_of


@at("models/<str:name>/releases/<int:number>/export", "api_release_export")
class ReleaseExport(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=ExportRequestSerializer, responses={202: JobSerializer})
    def post(self, request: Request, name: str, number: int) -> Response:
        """Sends a release to an OCI registry that an administrator allows: 202 with the job, whose `result` has the digest."""
        address = data_of(request, ExportRequestSerializer)["address"]
        job = release_export(release=release_get(model_get(name), number), address=address, actor=self.actor)
        return Response(JobSerializer(job).data, status=202, headers={"Location": reverse("api_job", args=[job.pk])})
