"""Replays over REST: beginning one, the list, one with its figures, the requests that differ most, and the gate of a model."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import CLIENT_DATA, Right
from dashboard.captures.selectors import capture_get
from dashboard.catalog.selectors import model_get, version_get
from dashboard.models import Capture, Model
from dashboard.replays import selectors as select
from dashboard.replays import serializers
from dashboard.replays.counting import KEPT
from dashboard.replays.services import replay_delete, replay_gate_set, replay_start
from dashboard.shared.repository_errors import repository_errors
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless

_REPLAYS = "models/<str:name>/captures/<uuid:capture>/replays"


def _capture(name: str, pk: UUID) -> Capture:
    return capture_get(model_get(name), pk)


@at(_REPLAYS, "api_replays")
class ReplayList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": CLIENT_DATA}

    @extend_schema(operation_id="models_captures_replays_list", responses=serializers.ReplaySerializer(many=True))
    def get(self, request: Request, name: str, capture: UUID) -> Response:
        """The replays of a capture, newest first."""
        return self.page(select.replays(_capture(name, capture)), serializers.ReplaySerializer)

    @extend_schema(request=serializers.ReplayRequestSerializer, responses={202: serializers.ReplaySerializer})
    def post(self, request: Request, name: str, capture: UUID) -> Response:
        """Begins to replay a capture against a version, by a job on a server of its own."""
        given = data_of(request, serializers.ReplayRequestSerializer)
        found = _capture(name, capture)
        version = version_get(found.model, given.pop("version"))
        replay = replay_start(capture=found, version=version, actor=self.actor, **given)
        return Response(serializers.ReplaySerializer(replay).data, status=202)


@at(f"{_REPLAYS}/<int:pk>", "api_replay")
class ReplayDetail(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": CLIENT_DATA}

    @extend_schema(responses=serializers.ReplaySerializer)
    def get(self, request: Request, name: str, capture: UUID, pk: int) -> Response:
        """One replay with its figures, which grow while it runs."""
        return Response(serializers.ReplaySerializer(select.replay_get(_capture(name, capture), pk)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, capture: UUID, pk: int) -> Response:
        """Deletes a replay that has ended, with the answers that it kept."""
        replay_delete(replay=select.replay_get(_capture(name, capture), pk), actor=self.actor)
        return Response(status=204)


@at(f"{_REPLAYS}/<int:pk>/worst", "api_replay_worst")
class ReplayWorst(Endpoint):
    rights = {"GET": CLIENT_DATA}

    @extend_schema(responses=serializers.WorstAnswerSerializer)
    def get(self, request: Request, name: str, capture: UUID, pk: int) -> Response:
        """The requests that differ most, with both answers, and why requests failed. Each reading has an audit entry."""
        replay = select.replay_get(_capture(name, capture), pk)
        with repository_errors():
            worst = select.worst_requests(replay, self.actor, KEPT)
        failures = [{"reason": reason, **one} for reason, one in replay.figures["reasons"].items()]
        return Response(serializers.WorstAnswerSerializer({"worst": worst, "failures": failures}).data)


@at("models/<str:name>/replay_gate", "api_replay_gate")
class ReplayGate(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.ReplayGateSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The replay that a version must pass before it goes live; a null capture for none."""
        return _gate(model_get(name))

    @extend_schema(request=serializers.ReplayGateSerializer, responses=serializers.ReplayGateSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the replay gate; a null capture removes it."""
        given = data_of(request, serializers.ReplayGateSerializer)
        capture = given.pop("capture")
        gate = {"capture": str(capture) if capture else "", **given}
        return _gate(replay_gate_set(model=model_get(name), actor=self.actor, **gate))


def _gate(model: Model) -> Response:
    return Response(serializers.ReplayGateSerializer(model.replay_gate or {"capture": None}).data)
