from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access import activity as select
from dashboard.access.authorisation import Right
from dashboard.jobs.services import job_cancel
from dashboard.web.rest import serializers
from dashboard.web.rest.endpoint import Endpoint


class JobList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="jobs_list",
        parameters=[OpenApiParameter("state", str), OpenApiParameter("kind", str)],
        responses=serializers.JobSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        params = request.query_params
        return self.page(
            select.jobs(state=params.get("state", ""), kind=params.get("kind", "")), serializers.JobSerializer
        )


class JobDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.JobSerializer)
    def get(self, request: Request, pk: int) -> Response:
        return Response(serializers.JobSerializer(select.job_get(pk)).data)


class JobCancel(Endpoint):
    rights = {"POST": Right.VIEW}  # beside operators, whoever began it: see job_cancel

    @extend_schema(request=None, responses=serializers.JobSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """A queued job ends at once, a running one at its next step. Nothing half done is left."""
        return Response(serializers.JobSerializer(job_cancel(job=select.job_get(pk), actor=self.actor)).data)


class AuditList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="audit_list",
        parameters=[OpenApiParameter("model", str), OpenApiParameter("action", str), OpenApiParameter("actor", str)],
        responses=serializers.AuditSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Who did what, newest first."""
        params = request.query_params
        rows = select.activity(action=params.get("action", ""), actor_name=params.get("actor", ""))
        if params.get("model"):
            rows = rows.filter(model_name=params["model"])
        return self.page(rows, serializers.AuditSerializer)
