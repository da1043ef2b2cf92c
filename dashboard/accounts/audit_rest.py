"""The audit trail over REST."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.audit import activity
from dashboard.access.authorisation import Right
from dashboard.accounts.serializers import AuditSerializer
from dashboard.web.rest.endpoint import Endpoint


class AuditList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="audit_list",
        parameters=[OpenApiParameter("model", str), OpenApiParameter("action", str), OpenApiParameter("actor", str)],
        responses=AuditSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Who did what, newest first."""
        params = request.query_params
        rows = activity(action=params.get("action", ""), actor_name=params.get("actor", ""))
        if params.get("model"):
            rows = rows.filter(model_name=params["model"])
        return self.page(rows, AuditSerializer)
