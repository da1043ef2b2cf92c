"""The activity list and the audit trail over REST."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.audit import activity, settled_after
from dashboard.access.authorisation import Right
from dashboard.access.happenings import happenings
from dashboard.accounts.activity_filter import read_filter
from dashboard.accounts.serializers import AuditSerializer, HappeningSerializer
from dashboard.shared.exceptions import Invalid
from dashboard.web.rest.endpoint import Endpoint, at

_MOMENTS = (
    OpenApiParameter("from", str, description="A date, or a moment in ISO 8601."),
    OpenApiParameter("to", str, description="A date, inclusive, or a moment, exclusive."),
)


@at("audit", "api_audit")
class AuditList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="audit_list",
        parameters=[
            *(OpenApiParameter(name, str) for name in ("model", "action", "actor")),
            *_MOMENTS,
            OpenApiParameter("after", int, description="The entries after the one with this `id`, the oldest first."),
        ],
        responses=AuditSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The audit trail: acts of people and of the system, newest first."""
        params = request.query_params
        rows = activity(action=params.get("action", ""), actor_name=params.get("actor", ""))
        if params.get("model"):
            rows = rows.filter(model_name=params["model"])
        wanted = read_filter(params)
        if wanted.since:
            rows = rows.filter(at__gte=wanted.since)
        if wanted.until:
            rows = rows.filter(at__lt=wanted.until)
        if "after" in params:
            rows = settled_after(rows, _number(params["after"]))
        return self.page(rows, AuditSerializer)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Invalid("expected 'after' as the id of an entry, or 0")
    return int(text)


@at("activity", "api_activity")
class ActivityList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="activity_list",
        parameters=[
            OpenApiParameter(
                "what", str, description="people, servers, failures, or one kind, such as version.publish."
            ),
            OpenApiParameter("who", str),
            OpenApiParameter("model", str),
            OpenApiParameter("q", str, description="Words that all occur in the sentence or the model's name."),
            *_MOMENTS,
        ],
        responses=HappeningSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The activity: acts of people, events of servers and models, and failed jobs, newest first."""
        return self.page(happenings(read_filter(request.query_params)), HappeningSerializer)
