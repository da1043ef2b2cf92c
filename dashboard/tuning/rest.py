"""Tunings over REST: starting one, the list, one, deleting it, and applying it directly or as a canary."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get, version_get
from dashboard.jobs.rest import after_job
from dashboard.jobs.serializers import JobSerializer
from dashboard.models import Tuning
from dashboard.tuning import selectors as select
from dashboard.tuning import serializers
from dashboard.tuning.services import tuning_apply, tuning_canary, tuning_delete, tuning_start
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless

_VERSION = "models/<str:name>/versions/<int:number>"


@at(f"{_VERSION}/tunings", "api_tunings")
class TuningList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(operation_id="models_versions_tunings_list", responses=serializers.TuningSerializer(many=True))
    def get(self, request: Request, name: str, number: int) -> Response:
        """The tunings of a version, newest first."""
        return self.page(select.tunings(version_get(model_get(name), number)), serializers.TuningSerializer)

    @extend_schema(request=serializers.TuningRequestSerializer, responses={202: serializers.TuningSerializer})
    def post(self, request: Request, name: str, number: int) -> Response:
        """Begins to search for a better configuration, by a job: each trial has a server of its own."""
        given = data_of(request, serializers.TuningRequestSerializer)
        found = tuning_start(version=version_get(model_get(name), number), actor=self.actor, plan=given)
        return Response(serializers.TuningSerializer(found).data, status=202)


@at(f"{_VERSION}/tunings/<int:pk>", "api_tuning")
class TuningDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": Right.OPERATE}

    @extend_schema(responses=serializers.TuningSerializer)
    def get(self, request: Request, name: str, number: int, pk: int) -> Response:
        """One tuning with its trials; each is added when it ends."""
        return Response(serializers.TuningSerializer(_tuning(name, number, pk)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, number: int, pk: int) -> Response:
        """Deletes a tuning that has ended."""
        tuning_delete(tuning=_tuning(name, number, pk), actor=self.actor)
        return Response(status=204)


@at(f"{_VERSION}/tunings/<int:pk>/apply", "api_tuning_apply")
class TuningApply(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses={201: serializers.AppliedSerializer})
    def post(self, request: Request, name: str, number: int, pk: int) -> Response:
        """Makes the chosen configuration the present one, for all requests."""
        releases = tuning_apply(tuning=_tuning(name, number, pk), actor=self.actor)
        return Response({"releases": {release.model.name: release.number for release in releases}}, status=201)


@at(f"{_VERSION}/tunings/<int:pk>/canary", "api_tuning_canary")
class TuningCanary(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(
        request=serializers.CanaryRequestSerializer, responses={200: serializers.TuningSerializer, 202: JobSerializer}
    )
    def post(self, request: Request, name: str, number: int, pk: int) -> Response:
        """Begins a canary, by a job: a new version with the same files and the chosen settings gets requests step by step."""
        given = data_of(request, serializers.CanaryRequestSerializer)
        tuning = _tuning(name, number, pk)
        job = tuning_canary(tuning=tuning, actor=self.actor, override=given.get("override", ""))
        return after_job(job, lambda: Response(serializers.TuningSerializer(_tuning(name, number, pk)).data))


def _tuning(name: str, number: int, pk: int) -> Tuning:
    return select.tuning_get(version_get(model_get(name), number), pk)
