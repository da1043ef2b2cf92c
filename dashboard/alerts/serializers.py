"""The shapes of alerts, channels, messages and own alerts over REST. No shape has a channel's secret."""

from typing import Any

from rest_framework import serializers

from dashboard.alerts.posting import shown_address
from dashboard.alerts.services import MOST_MUTE_MINUTES
from dashboard.models import AlertChannel, AlertDelivery, AlertEvent, AlertRule
from dashboard.shared.choices import AlertState, ChannelKind, DeliveryState, Severity


class AlertKindSerializer(serializers.Serializer[Any]):
    """alerts.selectors.Switched"""

    name = serializers.CharField(source="kind.name")
    title = serializers.CharField(source="kind.label")
    severity = serializers.ChoiceField(Severity.choices, source="kind.severity")
    means = serializers.CharField(source="kind.means")
    do = serializers.CharField(source="kind.do")
    hold_s = serializers.FloatField(
        source="kind.hold_s", help_text="Seconds that the condition must hold before people are told."
    )
    clear_s = serializers.FloatField(
        source="kind.clear_s", help_text="Seconds without the condition after which it resolves."
    )
    of_model = serializers.BooleanField(
        source="kind.of_model", help_text="Whether it can be switched off for one model."
    )
    on = serializers.BooleanField(help_text="False if it is switched off for the installation.")
    off_for = serializers.ListField(child=serializers.CharField(), help_text="Models for which it is switched off.")


class SwitchSerializer(serializers.Serializer[Any]):
    on = serializers.BooleanField()


class AlertEventSerializer(serializers.ModelSerializer[AlertEvent]):
    class Meta:
        model = AlertEvent
        fields = ["at", "what", "who", "text"]


class AlertSerializer(serializers.Serializer[Any]):
    """alerts.selectors.Shown"""

    id = serializers.IntegerField(source="alert.pk")
    kind = serializers.CharField(source="alert.kind")
    subject = serializers.CharField(source="alert.subject")
    model = serializers.CharField(source="alert.model_name", allow_blank=True)
    severity = serializers.ChoiceField(Severity.choices, source="alert.severity")
    state = serializers.ChoiceField(AlertState.choices, source="alert.state")
    title = serializers.CharField(source="alert.title")
    detail = serializers.CharField(source="alert.detail", allow_blank=True)
    means = serializers.CharField(source="kind.means", default="")
    do = serializers.CharField(source="kind.do", default="")
    address = serializers.CharField(source="alert.cause_address", help_text="The page that leads to the cause.")
    since = serializers.DateTimeField(source="alert.since")
    fired_at = serializers.DateTimeField(source="alert.fired_at")
    told_at = serializers.DateTimeField(source="alert.told_at", allow_null=True)
    resolved_at = serializers.DateTimeField(source="alert.resolved_at", allow_null=True)
    acknowledged_at = serializers.DateTimeField(source="alert.acknowledged_at", allow_null=True)
    acknowledged_by = serializers.CharField(source="alert.acknowledged_by_name", allow_blank=True)
    muted_until = serializers.DateTimeField(source="mute.until", default=None, allow_null=True)


class AlertDetailSerializer(AlertSerializer):
    history = AlertEventSerializer(many=True, source="alert.events")


class MuteSerializer(serializers.Serializer[Any]):
    minutes = serializers.IntegerField(min_value=1, max_value=MOST_MUTE_MINUTES)


class ChannelSerializer(serializers.ModelSerializer[AlertChannel]):
    """A channel; the address of Slack's kind is cut, because it is a secret."""

    address = serializers.SerializerMethodField()
    dead = serializers.IntegerField(default=0, help_text="Messages that were given up.")

    class Meta:
        model = AlertChannel
        fields = [
            "id",
            "name",
            "kind",
            "address",
            "enabled",
            "quiet_from",
            "quiet_until",
            "time_zone",
            "dead",
            "created_at",
        ]

    def get_address(self, channel: AlertChannel) -> str:
        return shown_address(channel)


class NewChannelSerializer(ChannelSerializer):
    secret = serializers.CharField(help_text="Of a webhook: it is in this answer and nowhere else.")

    class Meta(ChannelSerializer.Meta):
        fields = [*ChannelSerializer.Meta.fields, "secret"]


class ChannelChangeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100, required=False)
    address = serializers.CharField(max_length=500, required=False, allow_blank=True)
    secret = serializers.CharField(max_length=200, required=False, help_text="PagerDuty's routing key.")
    enabled = serializers.BooleanField(required=False)
    quiet_from = serializers.TimeField(required=False, allow_null=True)
    quiet_until = serializers.TimeField(required=False, allow_null=True)
    time_zone = serializers.CharField(max_length=64, required=False)


class ChannelRequestSerializer(ChannelChangeSerializer):
    name = serializers.CharField(max_length=100)
    kind = serializers.ChoiceField(ChannelKind.choices)


class DeliverySerializer(serializers.ModelSerializer[AlertDelivery]):
    channel = serializers.CharField(source="channel.name")
    state = serializers.ChoiceField(DeliveryState.choices)

    class Meta:
        model = AlertDelivery
        fields = [
            "id",
            "uid",
            "alert",
            "channel",
            "what",
            "state",
            "attempts",
            "error",
            "created_at",
            "due_at",
            "ended_at",
        ]


class RuleSerializer(serializers.ModelSerializer[AlertRule]):
    model = serializers.CharField(source="model_name")

    class Meta:
        model = AlertRule
        fields = ["id", "name", "figure", "model", "above", "threshold", "minutes", "severity", "created_by_name"]


class RuleRequestSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    figure = serializers.CharField(max_length=32)
    model = serializers.CharField(
        source="model_name", max_length=200, allow_blank=True, default="", help_text="Empty for each whole server."
    )
    above = serializers.BooleanField(default=True)
    threshold = serializers.FloatField()
    minutes = serializers.IntegerField(min_value=1, default=5)
    severity = serializers.ChoiceField(Severity.choices, default=Severity.WARNING)
