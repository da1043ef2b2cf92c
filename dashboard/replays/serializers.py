"""The shapes of replays as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.models import Replay
from dashboard.replays.picture import BIN_NAMES, latencies_of
from dashboard.replays.selectors import SideBySide
from dashboard.replays.services import CLIENTS, MOST_CLIENTS
from dashboard.shared.choices import MeasurementState


class OutputFiguresSerializer(serializers.Serializer[Any]):
    """models.replay.OutputFigures"""

    compared = serializers.IntegerField()
    differ = serializers.IntegerField()
    max_absolute = serializers.FloatField()
    max_relative = serializers.FloatField()
    top1 = serializers.ListField(
        child=serializers.IntegerField(), help_text="Rows whose first class was compared, and agreed."
    )
    bins = serializers.ListField(child=serializers.IntegerField(), help_text=f"Requests: {', '.join(BIN_NAMES)}.")


class ReplaySerializer(serializers.ModelSerializer[Replay]):
    capture = serializers.UUIDField(source="capture_id")
    version = serializers.IntegerField(source="version.number")
    state = serializers.ChoiceField(MeasurementState.choices)
    job = serializers.IntegerField(source="job_id", allow_null=True)
    compared = serializers.IntegerField(source="figures.compared")
    differ = serializers.IntegerField(source="figures.differ")
    failed = serializers.IntegerField(
        source="figures.failed", help_text="Answered when captured, failed in the replay."
    )
    failed_before = serializers.IntegerField(source="figures.failed_before", help_text="Failed when captured.")
    mended = serializers.IntegerField(
        source="figures.mended", help_text="Those of `failed_before` that were answered now."
    )
    outputs = serializers.DictField(source="figures.outputs", child=OutputFiguresSerializer())
    not_compared = serializers.ListField(source="unlike", child=serializers.CharField(), help_text="Masked outputs.")
    latency = serializers.SerializerMethodField()

    class Meta:
        model = Replay
        fields = [
            *("id", "capture", "version", "state", "note", "job", "absolute", "relative", "clients"),
            *("requests", "done", "compared", "differ", "failed", "failed_before", "mended", "outputs", "not_compared"),
            *("latency", "created_by_name", "created_at", "finished_at"),
        ]

    def get_latency(self, replay: Replay) -> dict[str, dict[str, float]]:
        """The latencies in the server, in ms: p50, p95 and p99, captured and replayed. {} before the first answers."""
        found = latencies_of(replay.figures)
        rows = found.rows if found is not None else []
        return {row.name: {"captured": row.captured, "replayed": row.replayed} for row in rows}


class ReplayRequestSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(help_text="The number of a published version.")
    absolute = serializers.FloatField(required=False, help_text="Of the gate of this capture if absent, else 1e-4.")
    relative = serializers.FloatField(required=False, help_text="Of the gate of this capture if absent, else 1e-3.")
    clients = serializers.IntegerField(
        required=False, help_text=f"Requests under way at a time: {CLIENTS} if absent, at most {MOST_CLIENTS}."
    )


class ReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField()
    requests = serializers.IntegerField()
    first = serializers.IntegerField(help_text="The number of the first such request.")


class WorstSerializer(serializers.Serializer[SideBySide]):
    number = serializers.IntegerField(source="difference.number")
    id = serializers.CharField(allow_blank=True)
    score = serializers.FloatField(
        source="difference.score", help_text="The largest difference in multiples of the tolerance."
    )
    max_absolute = serializers.FloatField(source="difference.max_absolute")
    detail = serializers.CharField(source="difference.detail")
    inputs = serializers.DictField(child=serializers.CharField(), help_text="Each input in short words.")
    captured = serializers.ListField(child=serializers.DictField())
    replayed = serializers.ListField(
        source="difference.outputs", child=serializers.DictField(), help_text="[] if the answer is too large to keep."
    )


class WorstAnswerSerializer(serializers.Serializer[Any]):
    worst = WorstSerializer(many=True)
    failures = ReasonSerializer(many=True)


class ReplayGateSerializer(serializers.Serializer[Any]):
    """models.model.ReplayGate; a null capture for no gate."""

    capture = serializers.UUIDField(allow_null=True)
    most_percent = serializers.FloatField(required=False, help_text="Of the requests that may differ; 0 if absent.")
    most_p99_times = serializers.FloatField(
        required=False, allow_null=True, help_text="In multiples of the captured p99; null for any."
    )
    absolute = serializers.FloatField(required=False)
    relative = serializers.FloatField(required=False)
