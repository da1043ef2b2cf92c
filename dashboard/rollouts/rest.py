"""Rollouts over REST: starting one, the list, one rollout with its figures, each act, and the mismatches of both arms."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import CLIENT_DATA, Right
from dashboard.catalog.selectors import model_get
from dashboard.models import Rollout
from dashboard.rollouts import selectors as select
from dashboard.rollouts import serializers
from dashboard.rollouts.advance import last_request_in_words
from dashboard.rollouts.services import (
    mismatches_forget,
    rollout_abort,
    rollout_advance,
    rollout_keep_old,
    rollout_pause,
    rollout_promote,
    rollout_resume,
    rollout_start,
    rollout_unload_old,
)
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("rollouts", "api_all_rollouts")
class AllRollouts(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="rollouts_list",
        parameters=[OpenApiParameter("state", str)],
        responses=serializers.RolloutOfModelSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The rollouts of all models, newest first; with `state` only those in that state."""
        rows = select.rollouts_of_all(state=request.query_params.get("state", ""))
        return self.page(rows, serializers.RolloutOfModelSerializer)


@at("models/<str:name>/rollouts", "api_rollouts")
class RolloutList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(operation_id="models_rollouts_list", responses=serializers.RolloutSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The rollouts of a model, newest first."""
        return self.page(select.rollouts(model_get(name)), serializers.RolloutSerializer)

    @extend_schema(request=serializers.RolloutRequestSerializer, responses={201: serializers.RolloutDetailSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Begins to move the model's requests to a candidate, by a plan: a shadow, a canary or an A/B test."""
        given = data_of(request, serializers.RolloutRequestSerializer)
        rollout = rollout_start(model=model_get(name), actor=self.actor, **given)
        return _detail(rollout, status=201)


@at("models/<str:name>/rollouts/<str:rollout>", "api_rollout")
class RolloutDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.RolloutDetailSerializer)
    def get(self, request: Request, name: str, rollout: str) -> Response:
        """The state of a rollout: its step, both arms side by side, each guardrail with its limit, and the next step."""
        return _detail(select.rollout_get(model_get(name), rollout))


@at("models/<str:name>/rollouts/<str:rollout>/figures", "api_rollout_figures")
class RolloutFigures(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.FiguresSerializer)
    def get(self, request: Request, name: str, rollout: str) -> Response:
        """The figures of both arms: since the beginning, in the guardrails' window, on each server, and over time."""
        found = select.rollout_get(model_get(name), rollout)
        standing = select.standing(found)
        figures: dict[str, object] = {
            "arms": standing.arms,
            "recent": standing.recent,
            "shadow": standing.shadow,
            "servers": [{"server": server.name, "arms": arms} for server, arms in select.figures_by_server(found)],
            "history": select.history(found),
        }
        return Response(serializers.FiguresSerializer(figures).data)


@at("models/<str:name>/rollouts/<str:rollout>/advance", "api_rollout_advance")
class RolloutAdvance(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=serializers.StepRequestSerializer, responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Takes the next step now."""
        given = data_of(request, serializers.StepRequestSerializer)
        found = select.rollout_get(model_get(name), rollout)
        return _detail(rollout_advance(rollout=found, actor=self.actor, **given))


@at("models/<str:name>/rollouts/<str:rollout>/pause", "api_rollout_pause")
class RolloutPause(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Pauses a rollout at its weight; guardrails stay in force."""
        return _detail(rollout_pause(rollout=select.rollout_get(model_get(name), rollout), actor=self.actor))


@at("models/<str:name>/rollouts/<str:rollout>/resume", "api_rollout_resume")
class RolloutResume(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Resumes a rollout: steps begin automatically again."""
        return _detail(rollout_resume(rollout=select.rollout_get(model_get(name), rollout), actor=self.actor))


@at("models/<str:name>/rollouts/<str:rollout>/promote", "api_rollout_promote")
class RolloutPromote(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=serializers.StepRequestSerializer, responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Lets the candidate answer everything; the old version stays loaded for as long as the plan says."""
        given = data_of(request, serializers.StepRequestSerializer)
        found = select.rollout_get(model_get(name), rollout)
        return _detail(rollout_promote(rollout=found, actor=self.actor, **given))


@at("models/<str:name>/rollouts/<str:rollout>/abort", "api_rollout_abort")
class RolloutAbort(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Lets the stable version answer everything again; also after the promotion, while it is held. Stops a shadow."""
        return _detail(rollout_abort(rollout=select.rollout_get(model_get(name), rollout), actor=self.actor))


@at("models/<str:name>/rollouts/<str:rollout>/keep_old", "api_rollout_keep_old")
class RolloutKeepOld(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=serializers.KeepOldSerializer, responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Keeps the old version loaded for this many days from now."""
        given = data_of(request, serializers.KeepOldSerializer)
        found = select.rollout_get(model_get(name), rollout)
        return _detail(rollout_keep_old(rollout=found, actor=self.actor, **given))


@at("models/<str:name>/rollouts/<str:rollout>/unload_old", "api_rollout_unload_old")
class RolloutUnloadOld(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.RolloutDetailSerializer)
    def post(self, request: Request, name: str, rollout: str) -> Response:
        """Unloads the old version now."""
        found = select.rollout_get(model_get(name), rollout)
        return _detail(rollout_unload_old(rollout=found, actor=self.actor, last_request=last_request_in_words(found)))


@at("models/<str:name>/rollouts/<str:rollout>/mismatches", "api_rollout_mismatches")
class MismatchList(Endpoint):
    rights = {"GET": Right.VIEW, "DELETE": Right.OPERATE}

    @extend_schema(operation_id="models_rollouts_mismatches_list", responses=serializers.MismatchSerializer(many=True))
    def get(self, request: Request, name: str, rollout: str) -> Response:
        """The requests that both arms answered differently, the worst first, without their tensors."""
        found = select.rollout_get(model_get(name), rollout)
        return self.page(select.mismatches(found), serializers.MismatchSerializer)

    @fieldless(operation_id="models_rollouts_mismatches_forget", responses={204: None})
    def delete(self, request: Request, name: str, rollout: str) -> Response:
        """Deletes these requests, with their inputs."""
        mismatches_forget(rollout=select.rollout_get(model_get(name), rollout), actor=self.actor)
        return Response(status=204)


@at("models/<str:name>/rollouts/<str:rollout>/mismatches/<int:pk>", "api_rollout_mismatch")
class MismatchDetail(Endpoint):
    rights = {"GET": CLIENT_DATA}

    @extend_schema(responses=serializers.MismatchDetailSerializer)
    def get(self, request: Request, name: str, rollout: str, pk: int) -> Response:
        """One request that both arms answered differently, with the client's inputs and both answers."""
        found = select.mismatch_get(select.rollout_get(model_get(name), rollout), pk)
        return Response(serializers.MismatchDetailSerializer(found).data)


def _detail(rollout: Rollout, status: int = 200) -> Response:
    return Response(serializers.RolloutDetailSerializer(select.standing(rollout)).data, status=status)
