"""Alerts over REST: the alerts and what people do with them, channels, messages, own alerts."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.alerts import selectors as select
from dashboard.alerts import serializers
from dashboard.alerts.channels import (
    channel_create,
    channel_delete,
    channel_test,
    channel_update,
    rule_create,
    rule_delete,
)
from dashboard.alerts.outbox import delivery_retry
from dashboard.alerts.services import alert_acknowledge, alert_mute, alert_unmute
from dashboard.alerts.switches import kind_switch
from dashboard.alerts.table import default_kind
from dashboard.catalog.selectors import model_get
from dashboard.models import Alert, Model
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("alerts", "api_alerts")
class AlertList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="alerts_list",
        parameters=[OpenApiParameter("state", str), OpenApiParameter("model", str)],
        responses=serializers.AlertSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The alerts: those that fire first, then the newest. With `state` (firing, resolved) or `model` only those."""
        params = request.query_params
        rows = select.alerts(params.get("state", ""), params.get("model", ""))
        return self.page(rows, serializers.AlertSerializer, select.shown)


@at("alerts/<int:pk>", "api_alert")
class AlertDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.AlertDetailSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """One alert: what it means, what to do, and its history with who did what."""
        return _detail(select.alert_get(pk))


@at("alerts/<int:pk>/acknowledge", "api_alert_acknowledge")
class AlertAcknowledge(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.AlertDetailSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Records that the caller works on an alert that fires."""
        return _detail(alert_acknowledge(alert=select.alert_get(pk), actor=self.actor))


@at("alerts/<int:pk>/mute", "api_alert_mute")
class AlertMuting(Endpoint):
    rights = {"POST": Right.OPERATE, "DELETE": Right.OPERATE}

    @extend_schema(request=serializers.MuteSerializer, responses=serializers.AlertDetailSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Tells nobody about this kind of alert on this subject for some minutes."""
        given = data_of(request, serializers.MuteSerializer)
        return _detail(alert_mute(alert=select.alert_get(pk), actor=self.actor, **given))

    @fieldless(responses=serializers.AlertDetailSerializer)
    def delete(self, request: Request, pk: int) -> Response:
        """Ends the mute."""
        return _detail(alert_unmute(alert=select.alert_get(pk), actor=self.actor))


@at("alerts/kinds", "api_alert_kinds")
class AlertKinds(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="alerts_kinds", responses=serializers.AlertKindSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The alerts that exist without a setting, and what of them is switched off."""
        return self.page(select.kinds_switched(), serializers.AlertKindSerializer)


@at("alerts/kinds/<str:kind>", "api_alert_kind")
class AlertKindSwitch(Endpoint):
    rights = {"PUT": Right.ADMINISTER}

    @extend_schema(request=serializers.SwitchSerializer, responses=serializers.AlertKindSerializer)
    def put(self, request: Request, kind: str) -> Response:
        """Switches an alert off or on for the installation. Off resolves what fires of it."""
        return _switched(self, kind, None, data_of(request, serializers.SwitchSerializer))


@at("models/<str:name>/alerts/<str:kind>", "api_model_alert_kind")
class ModelAlertSwitch(Endpoint):
    rights = {"PUT": Right.OPERATE}

    @extend_schema(request=serializers.SwitchSerializer, responses=serializers.AlertKindSerializer)
    def put(self, request: Request, name: str, kind: str) -> Response:
        """Switches an alert off or on for one model. Off resolves what fires of it."""
        return _switched(self, kind, model_get(name), data_of(request, serializers.SwitchSerializer))


def _switched(endpoint: Endpoint, name: str, model: Model | None, given: dict[str, bool]) -> Response:
    kind_switch(kind=default_kind(name), actor=endpoint.actor, model=model, **given)
    return Response(serializers.AlertKindSerializer(select.kinds_switched(name)[0]).data)


@at("alerts/channels", "api_alert_channels")
class ChannelList(Endpoint):
    rights = {"GET": Right.ADMINISTER, "POST": Right.ADMINISTER}

    @extend_schema(operation_id="alerts_channels_list", responses=serializers.ChannelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The channels by which people are told."""
        return self.page(select.channels(), serializers.ChannelSerializer)

    @extend_schema(request=serializers.ChannelRequestSerializer, responses={201: serializers.NewChannelSerializer})
    def post(self, request: Request) -> Response:
        """Makes a channel. The secret of a webhook is in this answer and nowhere else."""
        channel, secret = channel_create(actor=self.actor, **data_of(request, serializers.ChannelRequestSerializer))
        return Response({**serializers.ChannelSerializer(channel).data, "secret": secret}, status=201)


@at("alerts/channels/<int:pk>", "api_alert_channel")
class ChannelDetail(Endpoint):
    rights = {"PATCH": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @extend_schema(request=serializers.ChannelChangeSerializer, responses=serializers.ChannelSerializer)
    def patch(self, request: Request, pk: int) -> Response:
        """Changes the given fields of a channel."""
        given = data_of(request, serializers.ChannelChangeSerializer)
        channel = channel_update(channel=select.channel_get(pk), actor=self.actor, **given)
        return Response(serializers.ChannelSerializer(channel).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Removes a channel with its messages."""
        channel_delete(channel=select.channel_get(pk), actor=self.actor)
        return Response(status=204)


@at("alerts/channels/<int:pk>/test", "api_alert_channel_test")
class ChannelTest(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @fieldless(responses={202: serializers.DeliverySerializer})
    def post(self, request: Request, pk: int) -> Response:
        """Sends a test message. Its outcome is in `/alerts/messages`."""
        delivery = channel_test(channel=select.channel_get(pk), actor=self.actor)
        return Response(serializers.DeliverySerializer(delivery).data, status=202)


@at("alerts/messages", "api_alert_messages")
class MessageList(Endpoint):
    rights = {"GET": Right.ADMINISTER}

    @extend_schema(
        operation_id="alerts_messages_list",
        parameters=[OpenApiParameter("state", str)],
        responses=serializers.DeliverySerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The messages, newest first; with `state` (waiting, sending, sent, dead, dropped) only those."""
        return self.page(select.deliveries(request.query_params.get("state", "")), serializers.DeliverySerializer)


@at("alerts/messages/<int:pk>/retry", "api_alert_message_retry")
class MessageRetry(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @fieldless(responses=serializers.DeliverySerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Sends a message again that was given up."""
        delivery = delivery_retry(delivery=select.delivery_get(pk), actor=self.actor)
        return Response(serializers.DeliverySerializer(delivery).data)


@at("alerts/rules", "api_alert_rules")
class RuleList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(operation_id="alerts_rules_list", responses=serializers.RuleSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Own alerts: figures that people watch."""
        return self.page(select.rules(), serializers.RuleSerializer)

    @extend_schema(request=serializers.RuleRequestSerializer, responses={201: serializers.RuleSerializer})
    def post(self, request: Request) -> Response:
        """Makes an own alert: a charted figure over some minutes is above or below a value."""
        rule = rule_create(actor=self.actor, **data_of(request, serializers.RuleRequestSerializer))
        return Response(serializers.RuleSerializer(rule).data, status=201)


@at("alerts/rules/<int:pk>", "api_alert_rule")
class RuleDetail(Endpoint):
    rights = {"DELETE": Right.OPERATE}

    @fieldless(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Removes an own alert; if it fires, it is resolved."""
        rule_delete(rule=select.rule_get(pk), actor=self.actor)
        return Response(status=204)


def _detail(alert: Alert) -> Response:
    return Response(serializers.AlertDetailSerializer(select.shown([alert])[0]).data)
