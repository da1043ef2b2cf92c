"""Objectives over REST: of a model, and the budgets of all."""

import time

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.models import Model
from dashboard.objectives import selectors as select
from dashboard.objectives import serializers
from dashboard.objectives.services import objective_set
from dashboard.web.rest.endpoint import Endpoint, at, data_of

_NONE: dict[str, object] = {
    "percent": None,
    "latency_ms": None,
    "budget": None,
    "failed": None,
    "slow": None,
    "windows": [],
    "down": [],
}


@at("models/<str:name>/objective", "api_objective")
class ModelObjective(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.ObjectiveSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The objective of a model, what is left of its budget, its burn rates and the forecast; nulls for no objective."""
        return _standing(model_get(name))

    @extend_schema(request=serializers.ObjectiveRequestSerializer, responses=serializers.ObjectiveSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the objective, such as 99.9 per cent of requests answered under 50 ms. A null `percent` removes it."""
        given = data_of(request, serializers.ObjectiveRequestSerializer)
        objective_set(model=model_get(name), actor=self.actor, **given)
        return _standing(model_get(name))


@at("objectives", "api_objectives")
class ObjectiveList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="objectives_list", responses=serializers.ModelBudgetSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The budgets of all models that have an objective, the least left first."""
        rows = [
            {
                "model": one.model.name,
                "percent": one.percent,
                "latency_ms": one.latency_ms,
                "budget": budget,
            }
            for one, budget in select.budgets(time.time())
        ]
        return self.page(rows, serializers.ModelBudgetSerializer)


def _standing(model: Model) -> Response:
    found = select.objective_of(model)
    if found is None:
        return Response(_NONE)
    return Response(serializers.ObjectiveSerializer(select.standing_of(found, time.time())).data)
