"""Measurements over REST: starting one, the list, one, the comparison of two or of several, and the
budget of a model."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get, version_get
from dashboard.measurements import selectors as select
from dashboard.measurements import serializers
from dashboard.measurements.comparison import compare, side_by_side
from dashboard.measurements.services import budget_set, measurement_delete, measurement_start
from dashboard.models import Model
from dashboard.models.model import Budget
from dashboard.shared.exceptions import Invalid
from dashboard.web.pages import whole_number
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from repository.config.document import Document

_VERSION = "models/<str:name>/versions/<int:number>"


@at(f"{_VERSION}/measurements", "api_measurements")
class MeasurementList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(
        operation_id="models_versions_measurements_list", responses=serializers.MeasurementSerializer(many=True)
    )
    def get(self, request: Request, name: str, number: int) -> Response:
        """The measurements of a version, newest first."""
        return self.page(select.measurements(version_get(model_get(name), number)), serializers.MeasurementSerializer)

    @extend_schema(request=serializers.MeasurementRequestSerializer, responses={202: serializers.MeasurementSerializer})
    def post(self, request: Request, name: str, number: int) -> Response:
        """Begins to measure a version, by a job: each load of the plan, one after the other."""
        given = data_of(request, serializers.MeasurementRequestSerializer)
        document = Document.read(given.pop("text")) if "text" in given else None
        found = measurement_start(
            version=version_get(model_get(name), number), actor=self.actor, plan=given, document=document
        )
        return Response(serializers.MeasurementSerializer(found).data, status=202)


@at(f"{_VERSION}/measurements/<int:pk>", "api_measurement")
class MeasurementDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": Right.OPERATE}

    @extend_schema(responses=serializers.MeasurementSerializer)
    def get(self, request: Request, name: str, number: int, pk: int) -> Response:
        """One measurement with its figures; each load is added when it ends."""
        found = select.measurement_get(version_get(model_get(name), number), pk)
        return Response(serializers.MeasurementSerializer(found).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, number: int, pk: int) -> Response:
        """Deletes a measurement that has ended."""
        found = select.measurement_get(version_get(model_get(name), number), pk)
        measurement_delete(measurement=found, actor=self.actor)
        return Response(status=204)


@at(f"{_VERSION}/measurements/<int:pk>/comparison", "api_measurement_comparison")
class MeasurementComparison(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[OpenApiParameter("with", int, required=True)], responses=serializers.MeasurementComparisonSerializer
    )
    def get(self, request: Request, name: str, number: int, pk: int) -> Response:
        """The differences of this measurement from another one of the same model, each with its spread."""
        second = select.measurement_get(version_get(model_get(name), number), pk)
        other = whole_number(request.query_params.get("with", ""))
        if other is None:
            raise Invalid("name the other measurement as ?with=")
        first = select.comparable_get(second, other)
        return Response(serializers.MeasurementComparisonSerializer(compare(first, second)).data)


@at("measurements/comparison", "api_measurements_comparison")
class MeasurementsSideBySide(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="measurements_side_by_side",
        parameters=[OpenApiParameter("run", int, many=True, required=True)],
        responses=serializers.SideBySideSerializer,
    )
    def get(self, request: Request) -> Response:
        """Measurements of any models side by side, each load with its differences from the first measurement that has it."""
        pks = [pk for text in request.query_params.getlist("run") if (pk := whole_number(text)) is not None]
        if not pks:
            raise Invalid("name the measurements as ?run=1&run=2")
        return Response(serializers.SideBySideSerializer(side_by_side(select.measured_in_order(pks))).data)


@at("models/<str:name>/budget", "api_budget")
class ModelBudget(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.BudgetSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The budget of a model, which a version must keep before it goes live; nulls for no budget."""
        return _budget(model_get(name))

    @extend_schema(request=serializers.BudgetSerializer, responses=serializers.BudgetSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the budget: the highest p99 at a number of requests a second. Two nulls remove it."""
        given = data_of(request, serializers.BudgetSerializer)
        budget = (
            Budget()
            if set(given.values()) == {None}
            else Budget(p99_ms=given["p99_ms"], per_second=given["per_second"])
        )
        return _budget(budget_set(model=model_get(name), actor=self.actor, budget=budget))


def _budget(model: Model) -> Response:
    return Response({"p99_ms": model.budget.get("p99_ms"), "per_second": model.budget.get("per_second")})
