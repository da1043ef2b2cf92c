"""Advice over REST."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.advice.selectors import model_advice
from dashboard.advice.serializers import FindingSerializer
from dashboard.catalog.selectors import model_get
from dashboard.web.rest.endpoint import Endpoint, at


@at("models/<str:name>/advice", "api_model_advice")
class ModelAdvice(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=FindingSerializer)
    def get(self, request: Request, name: str) -> Response:
        """A better configuration of batching and instances for the traffic of the last 15 minutes, or why there is none."""
        return Response(FindingSerializer(model_advice(model_get(name))).data)
