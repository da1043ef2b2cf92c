"""Jobs over REST, and the answers of endpoints that make jobs."""

from collections.abc import Callable

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.jobs import selectors as select
from dashboard.jobs.serializers import JobSerializer
from dashboard.jobs.services import job_cancel
from dashboard.models import Job
from dashboard.shared.choices import JobState
from dashboard.web.rest.endpoint import Endpoint, at, fieldless


@at("jobs", "api_jobs")
class JobList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="jobs_list",
        parameters=[OpenApiParameter("state", str), OpenApiParameter("kind", str)],
        responses=JobSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Long work, newest first."""
        params = request.query_params
        return self.page(select.jobs(state=params.get("state", ""), kind=params.get("kind", "")), JobSerializer)


@at("jobs/<int:pk>", "api_job")
class JobDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=JobSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """One job, with its progress, log and error."""
        return Response(JobSerializer(select.job_get(pk)).data)


@at("jobs/<int:pk>/cancel", "api_job_cancel")
class JobCancel(Endpoint):
    rights = {"POST": Right.VIEW}  # job_cancel checks the right: the person who began a job may cancel it too

    @fieldless(responses=JobSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Cancels a job. A queued job ends immediately, a running one at its next step. Nothing half done is left."""
        return Response(JobSerializer(job_cancel(job=select.job_get(pk), actor=self.actor)).data)


def after_job(job: Job, done: Callable[[], Response]) -> Response:
    """Answer for a job: with `done` if it succeeded, with its error if it failed, else with 202."""
    if job.state == JobState.SUCCEEDED:
        return done()
    if job.state == JobState.FAILED:
        status = job.result.get("status")
        return Response({"error": job.error, "job": job.pk}, status=status if isinstance(status, int) else 500)
    headers = {"Location": reverse("api_job", args=[job.pk])}
    return Response(JobSerializer(job).data, status=202, headers=headers)
