"""The pages of alerts: the list, one alert, channels with their messages; what people do with them, and own alerts."""

from datetime import datetime, time
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from dashboard.access.authorisation import Right, actor_of
from dashboard.alerts import selectors as select
from dashboard.alerts.channels import (
    MOST_MINUTES,
    channel_create,
    channel_delete,
    channel_test,
    channel_update,
    rule_create,
    rule_delete,
)
from dashboard.alerts.outbox import deliveries_dead, delivery_retry
from dashboard.alerts.posting import shown_address
from dashboard.alerts.rules import FIGURES
from dashboard.alerts.services import alert_acknowledge, alert_mute, alert_unmute
from dashboard.alerts.switches import kind_switch
from dashboard.alerts.table import default_kind
from dashboard.catalog.selectors import model_get
from dashboard.models import Alert, Model
from dashboard.shared.choices import AlertState, ChannelKind, DeliveryState, Severity
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import SELECTABLE, call_service, page_of, respond, whole_number

MUTES = ((60, "1 hour"), (480, "8 hours"), (1440, "1 day"), (10080, "1 week"))
_SHOWN_MESSAGES = 50


@get("alerts/", Right.VIEW)
def alerts(request: HttpRequest) -> HttpResponse:
    page = page_of(request, select.alerts(AlertState.RESOLVED))
    context = {
        "firing": select.shown(select.alerts(AlertState.FIRING)),
        "page": page,
        "resolved": select.shown(page),
        "dead": deliveries_dead(),
        "channel_count": select.channels().filter(enabled=True).count(),
        "kinds": select.kinds_switched(),
        "rules": select.rules(),
        "figures": FIGURES,
        "severities": Severity.choices,
        "models": Model.objects.values_list("name", flat=True)[:SELECTABLE],
        "most_minutes": MOST_MINUTES,
    }
    return respond(request, "alerts/alerts", context)


@get("alerts/<int:pk>/", Right.VIEW)
def alert(request: HttpRequest, pk: int) -> HttpResponse:
    found = select.alert_get(pk)
    context = {
        "row": select.shown([found])[0],
        "events": found.events.all(),
        "deliveries": found.deliveries.select_related("channel").order_by("pk"),
        "mutes": MUTES,
        "earlier": _earlier(found),
    }
    return respond(request, "alerts/alert", context)


def _earlier(found: Alert) -> list[Alert]:
    return list(select.alerts().filter(kind=found.kind, subject=found.subject).exclude(pk=found.pk)[:5])


@post("alerts/<int:pk>/acknowledge", Right.OPERATE, name="alert_acknowledge")
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    found = select.alert_get(pk)
    return call_service(request, alert_acknowledge, "Acknowledged.", "alert", pk, alert=found)


@post("alerts/<int:pk>/mute", Right.OPERATE, name="alert_mute")
def mute(request: HttpRequest, pk: int) -> HttpResponse:
    """Mute an alert for the minutes that the form names; 0 ends the mute."""
    found = select.alert_get(pk)
    try:
        minutes = whole_number(request.POST.get("minutes", "")) or 0
    except Invalid as error:
        messages.error(request, sentence(error.message))
        return redirect("alert", pk)
    if not minutes:
        return call_service(request, alert_unmute, "People are told again.", "alert", pk, alert=found)
    done = "Muted: nobody is told about this until then."
    return call_service(request, alert_mute, done, "alert", pk, alert=found, minutes=minutes)


@post("alerts/kinds/<str:kind>/switch", Right.ADMINISTER)
def alert_kind_switch(request: HttpRequest, kind: str) -> HttpResponse:
    """Switch a default alert off or on for the installation."""
    return _switch(request, kind, None)


@post("alerts/kinds/switch", Right.OPERATE)
def alert_model_switch(request: HttpRequest) -> HttpResponse:
    """Switch a default alert off or on for the model that the form names."""
    return _switch(request, request.POST.get("kind", ""), model_get(request.POST.get("model_name", "")))


def _switch(request: HttpRequest, name: str, model: Model | None) -> HttpResponse:
    kind, on = default_kind(name), request.POST.get("on") == "on"
    where = f"for {model.name}" if model is not None else "for the installation"
    done = f"'{kind.label}' is switched {'on' if on else 'off'} {where}."
    return call_service(request, kind_switch, done, "alerts", kind=kind, on=on, model=model)


@post("alerts/rules", Right.OPERATE)
def alert_rule_new(request: HttpRequest) -> HttpResponse:
    form = request.POST
    try:
        given = {
            "name": form.get("name", ""),
            "figure": form.get("figure", ""),
            "model_name": form.get("model_name", ""),
            "above": form.get("above") != "below",
            "threshold": _number(form.get("threshold", "")),
            "minutes": whole_number(form.get("minutes", "")) or 0,
            "severity": form.get("severity", ""),
        }
    except Invalid as error:
        messages.error(request, sentence(error.message))
        return redirect("alerts")
    return call_service(request, rule_create, "The own alert is made.", "alerts", **given)


@post("alerts/rules/<int:pk>/remove", Right.OPERATE)
def alert_rule_remove(request: HttpRequest, pk: int) -> HttpResponse:
    return call_service(request, rule_delete, "The own alert is removed.", "alerts", rule=select.rule_get(pk))


@get("alerts/channels", Right.ADMINISTER)
def alert_channels(request: HttpRequest) -> HttpResponse:
    return _channels(request)


def _channels(request: HttpRequest, **more: Any) -> HttpResponse:
    rows = [(channel, shown_address(channel)) for channel in select.channels()]
    context = {
        "channels": rows,
        "kinds": ChannelKind.choices,
        "dead": select.deliveries(DeliveryState.DEAD)[:_SHOWN_MESSAGES],
        "deliveries": select.deliveries()[:_SHOWN_MESSAGES],
        **more,
    }
    if more:
        return render(request, "alerts/channels.html", context, status=400 if "refused" in more else 200)
    return respond(request, "alerts/channels", context)


@post("alerts/channels/new", Right.ADMINISTER, page="alert_channels")
def alert_channel_new(request: HttpRequest) -> HttpResponse:
    """Make a channel, and show the secret of a webhook once."""
    form = request.POST
    try:
        given = {name: form.get(name, "") for name in ("name", "kind", "address", "secret")}
        channel, secret = channel_create(actor=actor_of(request), **given, **_quiet_hours(request))
    except DashboardError as error:
        return _channels(request, refused=error.message, form=form)
    if not secret:
        messages.success(request, f"Channel {channel.name} is made. Test it below.")
        return redirect("alert_channels")
    return _channels(request, new_channel=channel, new_secret=secret)


@post("alerts/channels/<int:pk>/change", Right.ADMINISTER)
def alert_channel_change(request: HttpRequest, pk: int) -> HttpResponse:
    """Change the quiet hours of a channel, and whether it is used."""
    channel = select.channel_get(pk)
    try:
        given = {"enabled": "enabled" in request.POST, **_quiet_hours(request)}
    except DashboardError as error:
        messages.error(request, sentence(error.message))
        return redirect("alert_channels")
    done = f"Channel {channel.name} is saved."
    return call_service(request, channel_update, done, "alert_channels", channel=channel, **given)


@post("alerts/channels/<int:pk>/test", Right.ADMINISTER)
def alert_channel_test(request: HttpRequest, pk: int) -> HttpResponse:
    done = "A test message is on its way: its outcome is listed below in some seconds."
    return call_service(request, channel_test, done, "alert_channels", channel=select.channel_get(pk))


@post("alerts/channels/<int:pk>/remove", Right.ADMINISTER)
def alert_channel_remove(request: HttpRequest, pk: int) -> HttpResponse:
    channel = select.channel_get(pk)
    done = f"Channel {channel.name} is removed."
    return call_service(request, channel_delete, done, "alert_channels", channel=channel)


@post("alerts/messages/<int:pk>/retry", Right.ADMINISTER)
def alert_message_retry(request: HttpRequest, pk: int) -> HttpResponse:
    done = "The message is sent again."
    return call_service(request, delivery_retry, done, "alert_channels", delivery=select.delivery_get(pk))


def _quiet_hours(request: HttpRequest) -> dict[str, Any]:
    return {
        "quiet_from": _clock(request.POST.get("quiet_from", "")),
        "quiet_until": _clock(request.POST.get("quiet_until", "")),
        "time_zone": request.POST.get("time_zone", "") or "UTC",
    }


def _clock(text: str) -> time | None:
    if not text.strip():
        return None
    try:
        return datetime.strptime(text.strip()[:5], "%H:%M").time()
    except ValueError:
        raise Invalid(f"'{text[:20]}' is not a time of the day such as 22:00") from None


def _number(text: str) -> float:
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        raise Invalid(f"the value '{text[:40]}' is not a number") from None
