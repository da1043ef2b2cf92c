"""Models over REST: the list, one model, loading, unloading, deleting."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.catalog import serializers
from dashboard.catalog.selectors import unmanaged_models
from dashboard.catalog.services import model_delete, model_describe, model_load, model_unload
from dashboard.servers.consumers import MODEL_LINES
from dashboard.shared.exceptions import Invalid
from dashboard.shared.model_logs import model_log_tail
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless

MOST_LINES = 5000  # the most lines of a model's log in one answer


@at("models", "api_models")
class ModelList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="models_list",
        parameters=[OpenApiParameter("search", str), OpenApiParameter("tag", str)],
        responses=serializers.ModelSummarySerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Every model, with its state and its live versions."""
        search, tag = request.query_params.get("search", "").lower(), request.query_params.get("tag", "")
        fitting = [
            row for row in select.models_standing() if search in row.name.lower() and (not tag or tag in row.tags)
        ]
        return self.page(fitting, serializers.ModelSummarySerializer, select.summaries_of)


@at("repository/unmanaged", "api_unmanaged")
class Unmanaged(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="repository_unmanaged", responses=serializers.UnmanagedSerializer)
    def get(self, request: Request) -> Response:
        """Folders of the repository that are not managed yet, because somebody copied them there."""
        return Response({"names": unmanaged_models()})


@at("models/<str:name>", "api_model")
class ModelDetail(Endpoint):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE, "DELETE": Right.OPERATE}

    @extend_schema(responses=serializers.ModelSummarySerializer)
    def get(self, request: Request, name: str) -> Response:
        """One model, with its state and its live versions."""
        return summary_response(name)

    @extend_schema(request=serializers.ModelChangeSerializer, responses=serializers.ModelSummarySerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Changes description and tags."""
        data = data_of(request, serializers.ModelChangeSerializer)
        model_describe(model=select.model_get(name), actor=self.actor, **data)
        return summary_response(name)

    @fieldless(
        parameters=[OpenApiParameter("confirm", str, required=True, description="The model's name.")],
        responses={204: None},
    )
    def delete(self, request: Request, name: str) -> Response:
        """Removes an unloaded model with all its files."""
        confirm = request.query_params.get("confirm", "")
        model_delete(model=select.model_get(name), actor=self.actor, confirm_name=confirm)
        return Response(status=204)


@at("models/<str:name>/load", "api_model_load")
class ModelLoad(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Loads the model. Its state says when it is ready."""
        model_load(model=select.model_get(name), actor=self.actor)
        return summary_response(name)


@at("models/<str:name>/unload", "api_model_unload")
class ModelUnload(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Unloads the model. Requests under way are finished, new ones refused."""
        model_unload(model=select.model_get(name), actor=self.actor)
        return summary_response(name)


@at("models/<str:name>/log", "api_model_log")
class ModelLog(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[OpenApiParameter("lines", int, description=f"By default {MODEL_LINES}, at most {MOST_LINES}.")],
        responses=serializers.ModelLogSerializer,
    )
    def get(self, request: Request, name: str) -> Response:
        """The newest lines about the model in the bundled server's log, and the model's own output; the oldest line first."""
        model = select.model_get(name)
        text = request.query_params.get("lines", str(MODEL_LINES))
        if not text.isdecimal() or not 0 < int(text[:9]) <= MOST_LINES:
            raise Invalid(f"expected 'lines' as a number from 1 to {MOST_LINES}")
        return Response({"lines": model_log_tail(model.name, int(text))})


def summary_response(name: str, status: int = 200) -> Response:
    summary = select.model_summary(select.model_get(name))
    return Response(serializers.ModelSummarySerializer(summary).data, status=status)
