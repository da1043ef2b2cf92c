"""Channels, own alerts, and the default alerts that are switched off. The secret of a channel stays where it is."""

from collections.abc import Mapping
from datetime import time
from typing import Any

from dashboard.access.authorisation import Actor
from dashboard.alerts.channels import channel_create, channel_delete, channel_update, rule_create, rule_delete
from dashboard.alerts.switches import kind_switch
from dashboard.alerts.table import DEFAULTS, AlertKind
from dashboard.models import AlertChannel, AlertOff, AlertRule
from dashboard.shared.choices import ChannelKind, Severity
from dashboard.shared.exceptions import NotFound
from dashboard.text.kinds import INSTALLATION, Change, Kind, Secrets, administers
from dashboard.text.shapes import TIME_OF_DAY, Record, Table

_CHANNEL = {"address": "", "enabled": True, "quiet_from": None, "quiet_until": None, "time_zone": "UTC"}
_RULE = {"model_name": "", "above": True, "minutes": 5, "severity": str(Severity.WARNING)}


# -- channels ----------------------------------------------------------------------------------------------------------
def _channels() -> Mapping[str, Any]:
    return {INSTALLATION: {channel.name: _channel(channel) for channel in AlertChannel.objects.all()}}


def _channel(channel: AlertChannel) -> dict[str, object]:
    shown = {name: getattr(channel, name) for name in ("kind", *_CHANNEL)}
    if channel.kind == ChannelKind.SLACK:  # its address is a secret
        del shown["address"]
    return {**shown, "kind": str(channel.kind)}


def _write_channel(change: Change, actor: Actor, kept: Secrets) -> None:
    found = AlertChannel.objects.filter(name=change.key).first()
    if change.before is None:
        given = _given({**_CHANNEL, **change.after})
        _, secret = channel_create(actor=actor, name=change.key, **given)
        if secret:
            kept.keep(f"key of the signatures of channel {change.key}", secret)
        return
    if found is None:
        raise NotFound(f"channel '{change.key}' was removed meanwhile")
    if change.after is None:
        channel_delete(channel=found, actor=actor)
        return
    wanted = {
        name: change.after.get(name, default) for name, default in _CHANNEL.items() if change.changed(name, default)
    }
    channel_update(channel=found, actor=actor, **_given(wanted))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: fields[name] for name in ("quiet_from", "quiet_until") if fields.get(name)}
    return {**fields, **{name: time.fromisoformat(value) for name, value in times.items()}}


def _refused_channel(change: Change, actor: Actor) -> str:
    if change.after is None:
        return ""
    kind = change.after["kind"]
    if kind not in ChannelKind.values:
        return f"expected {', '.join(ChannelKind.values)} as kind, got '{kind[:40]}'"
    if kind == ChannelKind.SLACK and "address" in change.after:
        return "the address of a Slack channel is a secret, which a text does not hold: change it on the page"
    if change.before is not None:
        return "" if change.before["kind"] == kind else "the kind of a channel cannot be changed: name another channel"
    if kind in (ChannelKind.SLACK, ChannelKind.PAGERDUTY):
        return "it has a secret that a text does not hold: make this channel on the page first, under the same name"
    return ""


CHANNELS = Kind(
    name="channels",
    one="channel",
    file="alert_channels.yaml",
    shape=Table(
        Record(
            {
                "kind": str,
                "address": str,
                "enabled": bool,
                "quiet_from": TIME_OF_DAY,
                "quiet_until": TIME_OF_DAY,
                "time_zone": str,
            },
            _CHANNEL,
        )
    ),
    read=_channels,
    write=_write_channel,
    entries=True,
    refused=_refused_channel,
    rights=administers,
    makes_secret=lambda entry: entry["kind"] == ChannelKind.WEBHOOK,
)


# -- own alerts --------------------------------------------------------------------------------------------------------
def _rules() -> Mapping[str, Any]:
    fields = ("figure", "threshold", *_RULE)
    rows = AlertRule.objects.all()
    return {INSTALLATION: {rule.name: {name: getattr(rule, name) for name in fields} for rule in rows}}


def _write_rule(change: Change, actor: Actor, kept: Secrets) -> None:
    found = AlertRule.objects.filter(name=change.key).first()
    if change.before is not None and found is not None:
        rule_delete(rule=found, actor=actor)  # a rule cannot be changed; a page makes another one, too
    if change.after is not None:
        rule_create(actor=actor, name=change.key, **{**_RULE, **change.after})


RULES = Kind(
    name="own alerts",
    one="own alert",
    file="alert_rules.yaml",
    shape=Table(
        Record(
            {"figure": str, "model_name": str, "above": bool, "threshold": float, "minutes": int, "severity": str},
            _RULE,
        )
    ),
    read=_rules,
    write=_write_rule,
    entries=True,
)


# -- default alerts that are off ---------------------------------------------------------------------------------------
def _off() -> Mapping[str, Any]:
    return {INSTALLATION: list(AlertOff.objects.filter(model=None).values_list("kind", flat=True))}


def default_alert(name: str) -> AlertKind | None:
    """Return a default kind of alert, None for an unknown name."""
    return next((kind for kind in DEFAULTS if kind.name == name), None)


def _write_off(change: Change, actor: Actor, kept: Secrets) -> None:
    kind = default_alert(change.before or change.after)
    if kind is not None:
        kind_switch(kind=kind, actor=actor, on=change.after is None)


def _refused_off(change: Change, actor: Actor) -> str:
    if change.after is None or default_alert(change.after):
        return ""
    return f"there is no default alert '{change.after[:40]}'; expected one of {', '.join(one.name for one in DEFAULTS)}"


OFF = Kind(
    name="alerts that are off",
    one="alert that is off",
    file="alerts_off.yaml",
    shape=[str],
    read=_off,
    write=_write_off,
    entries=True,
    listed=True,
    refused=_refused_off,
    rights=administers,
)
