"""The shapes of rollouts as JSON in the REST API. The rules are in services and in rollouts.plan."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.shared.choices import RolloutKind, RolloutState

_ARM = "A version's number, or a model on another server: an object with its `url`, `protocol` and `model`."


class StepSerializer(serializers.Serializer[Any]):
    """models.rollout.PlanStep"""

    weight = serializers.FloatField(help_text="Per cent of the requests that name no version.")
    bake_s = serializers.FloatField(
        help_text="Seconds that the step serves before the next one may begin automatically."
    )


class PlanSerializer(serializers.Serializer[Any]):
    """models.rollout.Plan"""

    steps = StepSerializer(many=True)
    promote = serializers.ChoiceField(["auto", "hand"])
    hold_days = serializers.FloatField()
    guardrails = serializers.ListField(child=serializers.DictField())
    min_samples = serializers.IntegerField()
    window_s = serializers.FloatField()
    alpha = serializers.FloatField()
    sticky = serializers.DictField(required=False)
    shadow = serializers.DictField(required=False)


class RolloutSerializer(serializers.ModelSerializer[models.Rollout]):
    kind = serializers.ChoiceField(RolloutKind.choices)
    state = serializers.ChoiceField(RolloutState.choices)
    stable = serializers.JSONField(help_text=_ARM)
    candidate = serializers.JSONField(help_text=_ARM)
    plan = PlanSerializer()
    weight = serializers.FloatField(help_text="Per cent of the requests that the candidate gets in the present step.")
    next_weight = serializers.FloatField(allow_null=True)
    created_by = serializers.CharField(source="created_by_name")
    ended_by = serializers.CharField(source="ended_by_name")

    class Meta:
        model = models.Rollout
        fields = [
            "name",
            "kind",
            "state",
            "stable",
            "candidate",
            "plan",
            "step",
            "step_since",
            "weight",
            "next_weight",
            "reason",
            "trouble",
            "started_at",
            "ended_at",
            "hold_until",
            "created_by",
            "ended_by",
        ]


class RolloutOfModelSerializer(RolloutSerializer):
    model = serializers.CharField(source="model.name")

    class Meta(RolloutSerializer.Meta):
        fields = ["model", *RolloutSerializer.Meta.fields]


class RolloutRequestSerializer(serializers.Serializer[Any]):
    candidate = serializers.JSONField(help_text=_ARM)
    kind = serializers.ChoiceField(RolloutKind.choices, default=RolloutKind.CANARY)
    stable = serializers.JSONField(
        required=False,
        allow_null=True,
        help_text="The model on another server that answers now; null if a version answers.",
    )
    plan = serializers.JSONField(
        required=False,
        allow_null=True,
        help_text="Fields of Plan. Missing fields have their defaults: 5, 25, 50 and 100 per cent for ten minutes each, "
        "guardrails on errors and p99, and the old version held for a week.",
    )
    override = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=500,
        help_text="Why the candidate gets requests although it does not keep the model's budget.",
    )


class StepRequestSerializer(serializers.Serializer[Any]):
    step = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        help_text="The step that the caller has seen; 409 if the rollout is at another step.",
    )


class KeepOldSerializer(serializers.Serializer[Any]):
    days = serializers.FloatField(help_text="Days from now.")


class ArmSerializer(serializers.Serializer[Any]):
    """rollouts.selectors.ArmFigures"""

    name = serializers.ChoiceField(["stable", "candidate"])
    words = serializers.CharField()
    version = serializers.IntegerField(allow_null=True)
    requests = serializers.IntegerField()
    share = serializers.FloatField(allow_null=True)
    errors = serializers.IntegerField()  # type: ignore[assignment]  # a field takes no attribute's place
    error_share = serializers.FloatField(allow_null=True)
    p50 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)
    mean_ms = serializers.FloatField(allow_null=True)


class EstimateSerializer(serializers.Serializer[Any]):
    """shared.intervals.Estimate"""

    value = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class DifferencesSerializer(serializers.Serializer[Any]):
    """rollouts.selectors.Differences"""

    error_share = EstimateSerializer(allow_null=True)
    p50 = EstimateSerializer(allow_null=True)
    p99 = EstimateSerializer(allow_null=True)


class ShadowSerializer(serializers.Serializer[Any]):
    """rollouts.selectors.ShadowFigures"""

    compared = serializers.IntegerField()
    disagreed = serializers.IntegerField()
    disagreed_share = serializers.FloatField(allow_null=True)
    mismatched = serializers.IntegerField()
    top1_share = serializers.FloatField(allow_null=True)
    max_absolute = serializers.FloatField()
    mean_absolute = serializers.FloatField(allow_null=True)
    max_relative = serializers.FloatField()
    failed = serializers.IntegerField()
    dropped = serializers.DictField(child=serializers.IntegerField())
    stable_p50 = serializers.FloatField(allow_null=True)
    stable_p99 = serializers.FloatField(allow_null=True)
    candidate_p50 = serializers.FloatField(allow_null=True)
    candidate_p99 = serializers.FloatField(allow_null=True)


class GuardrailSerializer(serializers.Serializer[Any]):
    """rollouts.selectors.GuardrailLine"""

    # The base class has an attribute `label`.
    name = serializers.CharField(source="label")
    unit = serializers.ChoiceField(["share", "ms", ""])
    stable = serializers.FloatField(allow_null=True)
    candidate = serializers.FloatField(allow_null=True)
    limit = serializers.FloatField(allow_null=True)
    samples = serializers.ListField(child=serializers.IntegerField())
    needed = serializers.IntegerField()
    p = serializers.FloatField(allow_null=True)
    state = serializers.ChoiceField(["waiting", "holds", "breached", ""])
    detail = serializers.CharField()


class RolloutDetailSerializer(serializers.Serializer[Any]):
    """rollouts.selectors.RolloutStanding"""

    rollout = RolloutSerializer()
    release = serializers.IntegerField(source="release.number", default=None, allow_null=True)
    weight = serializers.FloatField(help_text="Per cent of the requests that the candidate should get.")
    in_force = serializers.FloatField(allow_null=True, help_text="Per cent that the server gives the candidate.")
    serves = serializers.BooleanField()
    bake_left_s = serializers.FloatField(source="bake_left", allow_null=True)
    waits_for = serializers.CharField()
    arms = ArmSerializer(many=True)
    recent = ArmSerializer(many=True, help_text="The figures in the window that guardrails evaluate.")
    differences = DifferencesSerializer(
        allow_null=True, help_text="How far the candidate exceeds stable since it began, with 95 % confidence bounds."
    )
    shadow = ShadowSerializer(allow_null=True)
    guardrails = GuardrailSerializer(many=True)
    told_at = serializers.DateTimeField(allow_null=True)
    last_request = serializers.CharField(help_text="The last request of the old version, while it is held.")


class ServerFiguresSerializer(serializers.Serializer[Any]):
    server = serializers.CharField()
    arms = ArmSerializer(many=True)


class FiguresSerializer(serializers.Serializer[Any]):
    arms = ArmSerializer(many=True)
    recent = ArmSerializer(many=True)
    shadow = ShadowSerializer(allow_null=True)
    servers = ServerFiguresSerializer(many=True)
    history = serializers.DictField(help_text="`times`, `weight`, and of each of `arms` rps, errors, p50 and p99.")


class MismatchSerializer(serializers.ModelSerializer[models.RolloutMismatch]):
    server = serializers.CharField(source="server.name")

    class Meta:
        model = models.RolloutMismatch
        fields = ["id", "server", "at", "score", "detail", "size_bytes"]


class MismatchDetailSerializer(MismatchSerializer):
    inputs = serializers.JSONField(source="data.inputs")
    stable = serializers.JSONField(source="data.stable")
    candidate = serializers.JSONField(source="data.candidate")

    class Meta(MismatchSerializer.Meta):
        fields = [*MismatchSerializer.Meta.fields, "inputs", "stable", "candidate"]
