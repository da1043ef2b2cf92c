"""Makes, changes, tests and removes channels, and own alerts."""

import math
import secrets
from collections.abc import Mapping
from datetime import time
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.alerts.formats import PAGERDUTY_ADDRESS
from dashboard.alerts.outbox import TEST, delivery_create
from dashboard.alerts.posting import check_address
from dashboard.alerts.rules import FIGURES
from dashboard.alerts.services import alerts_close
from dashboard.alerts.table import kind_name
from dashboard.alerts.tasks import announce
from dashboard.models import AlertChannel, AlertDelivery, AlertRule, Model
from dashboard.shared.choices import ChannelKind, Severity
from dashboard.shared.exceptions import Conflict, Invalid

MOST_CHANNELS, MOST_RULES = 50, 200
MOST_MINUTES = 240
_PREFIX = "whsec_"


def channel_create(*, actor: Actor, **given: Any) -> tuple[AlertChannel, str]:
    """Make a channel; return it and the secret of a webhook, which is shown once and never again ("" for other kinds).

    given: name, kind, address, secret (PagerDuty's routing key), enabled, quiet_from, quiet_until, time_zone.
    """
    require(actor, Right.ADMINISTER)
    channel = AlertChannel(created_by_name=actor.name, kind=given.pop("kind", ""))
    if channel.kind not in ChannelKind.values:
        raise Invalid.at("kind", f"expected {', '.join(ChannelKind.values)}, got '{str(channel.kind)[:40]}'")
    made = ""
    if channel.kind == ChannelKind.WEBHOOK:
        if given.pop("secret", ""):
            raise Invalid.at("secret", "the secret of a webhook is made here; leave it out")
        made = channel.secret = _PREFIX + secrets.token_urlsafe(32)
    _fill(channel, given)
    with transaction.atomic():
        if AlertChannel.objects.count() >= MOST_CHANNELS:
            raise Conflict(f"there are {MOST_CHANNELS} channels: remove one first")
        _refuse_name(AlertChannel.objects.filter(name=channel.name).exists(), channel.name)
        channel.save()
        _record(actor, "alert.channel_create", f"Made channel {channel.name} ({channel.get_kind_display()})")
    return channel, made


def channel_update(*, channel: AlertChannel, actor: Actor, **given: Any) -> AlertChannel:
    """Change the given fields of a channel, except its kind."""
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        found = AlertChannel.objects.select_for_update().filter(pk=channel.pk).first()
        if found is None:
            raise Conflict("the channel was removed meanwhile")
        if found.kind == ChannelKind.WEBHOOK and given.pop("secret", ""):
            raise Invalid.at("secret", "the secret of a webhook is made here; make another channel for another one")
        _fill(found, given)
        _refuse_name(AlertChannel.objects.filter(name=found.name).exclude(pk=found.pk).exists(), found.name)
        found.save()
        _record(actor, "alert.channel_update", f"Changed channel {found.name}")
    return found


def channel_delete(*, channel: AlertChannel, actor: Actor) -> None:
    """Remove a channel with its messages."""
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        if AlertChannel.objects.filter(pk=channel.pk).delete()[0]:
            _record(actor, "alert.channel_delete", f"Removed channel {channel.name}")


def channel_test(*, channel: AlertChannel, actor: Actor) -> AlertDelivery:
    """Send a test message by a channel. Its outcome is in the list of messages."""
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        delivery = delivery_create(channel=channel, alert=None, what=TEST, now=timezone.now())
        _record(actor, "alert.channel_test", f"Tested channel {channel.name}")
        transaction.on_commit(announce)
    return delivery


def rule_create(*, actor: Actor, **given: Any) -> AlertRule:
    """Make an own alert. given: name, figure, model_name, above, threshold, minutes, severity."""
    require(actor, Right.OPERATE)
    rule = AlertRule(created_by_name=actor.name, **given)
    rule.name = rule.name.strip()
    if not rule.name or len(rule.name) > 100:
        raise Invalid.at("name", "an own alert needs a name of at most 100 characters")
    if rule.figure not in FIGURES:
        raise Invalid.at("figure", f"expected {', '.join(FIGURES)}, got '{rule.figure[:40]}'")
    if rule.model_name and FIGURES[rule.figure].process:
        raise Invalid.at("model_name", f"{rule.figure} is a figure of a whole server; leave the model out")
    if rule.model_name and not Model.objects.filter(name=rule.model_name).exists():
        raise Invalid.at("model_name", f"there is no model named '{rule.model_name[:200]}'")
    if not math.isfinite(rule.threshold) or abs(rule.threshold) > 1e15:
        raise Invalid.at("threshold", "expected a number")
    if not 1 <= rule.minutes <= MOST_MINUTES:
        raise Invalid.at("minutes", f"expected 1 to {MOST_MINUTES} minutes, got {rule.minutes}")
    if rule.severity not in Severity.values:
        raise Invalid.at("severity", f"expected {', '.join(Severity.values)}")
    with transaction.atomic():
        if AlertRule.objects.count() >= MOST_RULES:
            raise Conflict(f"there are {MOST_RULES} own alerts: remove one first")
        _refuse_name(AlertRule.objects.filter(name=rule.name).exists(), rule.name)
        rule.save()
        _record(actor, "alert.rule_create", f"Made own alert {rule.name}")
    return rule


def rule_delete(*, rule: AlertRule, actor: Actor) -> None:
    """Remove an own alert; if it fires, it is resolved."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        alerts_close(kind=kind_name(rule), actor=actor, why="its rule was removed")
        if AlertRule.objects.filter(pk=rule.pk).delete()[0]:
            _record(actor, "alert.rule_delete", f"Removed own alert {rule.name}")


def _fill(channel: AlertChannel, given: Mapping[str, Any]) -> None:
    """Write the given fields into a channel, and check it. Raises Invalid at a field."""
    for name, value in given.items():
        setattr(channel, name, value.strip() if isinstance(value, str) else value)
    if not channel.name or len(channel.name) > 100:
        raise Invalid.at("name", "a channel needs a name of at most 100 characters")
    if (channel.quiet_from is None) != (channel.quiet_until is None):
        raise Invalid.at("quiet_until", "quiet hours need both a begin and an end")
    for name in ("quiet_from", "quiet_until"):
        value = getattr(channel, name)
        if isinstance(value, time):
            setattr(channel, name, value.replace(second=0, microsecond=0, tzinfo=None))
    if channel.time_zone not in available_timezones():
        raise Invalid.at("time_zone", f"expected a time zone such as Europe/Berlin, got '{channel.time_zone[:40]}'")
    ZoneInfo(channel.time_zone)
    if channel.kind == ChannelKind.PAGERDUTY:
        channel.address = channel.address or PAGERDUTY_ADDRESS
        if not channel.secret:
            raise Invalid.at("secret", "PagerDuty needs the routing key of a service as secret")
    elif channel.kind != ChannelKind.WEBHOOK and channel.secret:
        raise Invalid.at("secret", f"a channel of the kind {channel.kind} has no secret")
    if len(channel.address) > 500 or len(channel.secret) > 200:
        raise Invalid.at("address", "the address is longer than 500 characters, or the secret than 200")
    if channel.kind != ChannelKind.EMAIL:
        check_address(channel.address)
        return
    try:
        validate_email(channel.address)
    except ValidationError:
        raise Invalid.at("address", "expected an e-mail address") from None


def _refuse_name(taken: bool, name: str) -> None:
    if taken:
        raise Conflict(f"the name '{name}' is taken; choose another one")


def _record(actor: Actor, action: str, summary: str) -> None:
    audit_record(actor=actor, action=action, summary=summary)
