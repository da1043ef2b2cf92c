"""Truth over REST: the metric of a model and its versions, and labels as JSON or CSV."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.models import Model
from dashboard.truth import selectors as select
from dashboard.truth import serializers
from dashboard.truth.services import LabelsAdded, csv_labels, json_labels, labels_add, metric_set
from dashboard.web.rest.endpoint import Endpoint, at, data_of
from dashboard.web.rest.parsers import RawParser, read_body

_BODY = 8 << 20


@at("models/<str:name>/truth", "api_truth")
class ModelTruth(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.TruthSerializer)
    def get(self, request: Request, name: str) -> Response:
        """How far the answers of each version are from the labels, by the metric of the model."""
        return _truth(model_get(name))

    @extend_schema(request=serializers.MetricRequestSerializer, responses=serializers.TruthSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the metric; the labels of the last 30 days are compared again."""
        model = model_get(name)
        metric_set(model=model, actor=self.actor, **data_of(request, serializers.MetricRequestSerializer))
        return _truth(model)


@at("models/<str:name>/labels", "api_labels")
class Labels(Endpoint):
    rights = {"POST": Right.OPERATE}
    max_body_bytes = _BODY

    @extend_schema(request=serializers.LabelsSerializer, responses=serializers.LabelsAddedSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Stores labels by the id of their request, up to 30 days before or after it is captured.

        A later one replaces it. If one is wrong, none is stored. One that comes over 30 days after its answer is stored and not
        counted: `GET models/<name>/truth` has the number of such labels as `late`.
        """
        given = data_of(request, serializers.LabelsSerializer)
        return _added(labels_add(model=model_get(name), actor=self.actor, labels=json_labels(given["labels"])))


@at("models/<str:name>/labels/csv", "api_labels_csv")
class LabelsFile(Endpoint):
    rights = {"POST": Right.OPERATE}
    max_body_bytes = _BODY
    parser_classes = [RawParser]

    @extend_schema(request={"text/csv": OpenApiTypes.BINARY}, responses=serializers.LabelsAddedSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Stores the labels of a CSV file with the columns id and label, at most 100,000 rows: all of them, or none."""
        model = model_get(name)
        rows = csv_labels(read_body(request, self.max_body_bytes))
        return _added(labels_add(model=model, actor=self.actor, labels=rows))


def _added(found: LabelsAdded) -> Response:
    return Response(serializers.LabelsAddedSerializer(found).data)


def _truth(model: Model) -> Response:
    metric, counts = select.metric_of(model), select.label_counts(model)
    shown = {
        "metric": metric,
        "labels": counts.total,
        "waiting": counts.waiting,
        "late": counts.late,
        "compared": select.compared(metric) if metric is not None else "",
        "versions": select.versions_of(metric) if metric is not None else [],
    }
    return Response(serializers.TruthSerializer(shown).data)
