"""Drift monitors over REST: making one, the list, its windows, checking it now, and the models in which drift was found."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.drift import selectors as select
from dashboard.drift import serializers
from dashboard.drift.services import monitor_check, monitor_create, monitor_delete
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless

_MONITOR = "models/<str:name>/drift-monitors/<int:pk>"


@at("drift", "api_drift_found")
class DriftFoundList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="drift_found_list", responses=serializers.DriftFoundSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The models whose newest window of requests drifted from its reference, and since when."""
        return self.page(select.drift_found(), serializers.DriftFoundSerializer)


@at("models/<str:name>/drift-monitors", "api_drift_monitors")
class DriftMonitorList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(operation_id="drift_monitors_list", responses=serializers.DriftMonitorSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The drift monitors of a model, newest first."""
        return self.page(select.monitors(model_get(name)), serializers.DriftMonitorSerializer)

    @extend_schema(request=serializers.DriftRequestSerializer, responses={202: serializers.DriftMonitorSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Begins to compare captured requests with a reference, window by window, by jobs."""
        given = data_of(request, serializers.DriftRequestSerializer)
        found = monitor_create(model=model_get(name), actor=self.actor, **given)
        return Response(serializers.DriftMonitorSerializer(found).data, status=202)


@at(_MONITOR, "api_drift_monitor")
class DriftMonitorDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": Right.OPERATE}

    @extend_schema(responses=serializers.DriftMonitorSerializer)
    def get(self, request: Request, name: str, pk: int) -> Response:
        """One drift monitor, with the state of its newest window."""
        return Response(serializers.DriftMonitorSerializer(select.monitor_get(model_get(name), pk)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, pk: int) -> Response:
        """Deletes a drift monitor with its windows."""
        monitor_delete(monitor=select.monitor_get(model_get(name), pk), actor=self.actor)
        return Response(status=204)


@at(f"{_MONITOR}/check", "api_drift_check")
class DriftCheck(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses={202: serializers.DriftMonitorSerializer})
    def post(self, request: Request, name: str, pk: int) -> Response:
        """Compares the windows that were captured since the last check, by a job. `watch` does so each minute."""
        found = monitor_check(monitor=select.monitor_get(model_get(name), pk), actor=self.actor)
        return Response(serializers.DriftMonitorSerializer(found).data, status=202)


@at(f"{_MONITOR}/windows", "api_drift_windows")
class DriftWindowList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="drift_windows_list", responses=serializers.DriftWindowSerializer(many=True))
    def get(self, request: Request, name: str, pk: int) -> Response:
        """The windows that were compared, newest first, with their columns, the worst first."""
        return self.page(select.windows(select.monitor_get(model_get(name), pk)), serializers.DriftWindowSerializer)


@at(f"{_MONITOR}/windows/<int:number>", "api_drift_window")
class DriftWindowDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.DriftWindowDetailSerializer)
    def get(self, request: Request, name: str, pk: int, number: int) -> Response:
        """One window, with the distributions of its worst columns for those who may see what clients send."""
        window = select.window_get(select.monitor_get(model_get(name), pk), number)
        window.distributions = select.distributions_of(window, self.actor)  # type: ignore[attr-defined]
        return Response(serializers.DriftWindowDetailSerializer(window).data)
