"""Reads of alerts, channels and messages, for pages and REST."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Case, Count, Exists, IntegerField, OuterRef, Q, QuerySet, Value, When
from django.utils import timezone

from dashboard.alerts.table import DEFAULTS, AlertKind, button_of, kind_of
from dashboard.models import Alert, AlertChannel, AlertDelivery, AlertMute, AlertOff, AlertRule
from dashboard.shared.choices import AlertState, DeliveryState, Severity
from dashboard.shared.exceptions import NotFound

_SEVERITY_FIRST = Case(When(severity=Severity.CRITICAL, then=Value(0)), default=Value(1), output_field=IntegerField())


@dataclass(frozen=True, slots=True)
class Shown:
    """An alert with its kind (None if its rule was removed), and its mute."""

    alert: Alert
    kind: AlertKind | None
    mute: AlertMute | None

    @property
    def button(self) -> str:
        return button_of(self.kind, self.alert.address)


@dataclass(frozen=True, slots=True)
class Switched:
    """A default kind, and what of it is switched off."""

    kind: AlertKind
    off: Sequence[AlertOff]

    @property
    def whole(self) -> AlertOff | None:
        """The row that switches it off for the installation, or None."""
        return next((row for row in self.off if row.model is None), None)

    @property
    def on(self) -> bool:
        return self.whole is None

    @property
    def off_for(self) -> list[str]:
        return [row.model.name for row in self.off if row.model is not None]


def kinds_switched(name: str = "") -> list[Switched]:
    """Return the default kinds, or one of them, each with what is switched off."""
    off: dict[str, list[AlertOff]] = defaultdict(list)
    for row in AlertOff.objects.select_related("model"):
        off[row.kind].append(row)
    return [Switched(kind, off[kind.name]) for kind in DEFAULTS if name in ("", kind.name)]


def alerts(state: str = "", model_name: str = "") -> QuerySet[Alert]:
    """Return the alerts that fired, those that fire first, the critical ones before the others; then the newest."""
    found = Alert.objects.exclude(fired_at=None)
    if state:
        found = found.filter(state=state)
    if model_name:
        found = found.filter(model_name=model_name)
    firing = Case(When(state=AlertState.FIRING, then=Value(0)), default=Value(1), output_field=IntegerField())
    return found.order_by(firing, _SEVERITY_FIRST, "-fired_at", "-pk")


def alert_get(pk: int) -> Alert:
    try:
        return alerts().get(pk=pk)
    except Alert.DoesNotExist:
        raise NotFound(f"there is no alert {pk}; it may have been removed, as old ones are") from None


def firing_count() -> int:
    """Return the number of alerts that fire, and that nobody has acknowledged or muted."""
    muted = AlertMute.objects.filter(until__gt=timezone.now(), kind=OuterRef("kind"), subject=OuterRef("subject"))
    return Alert.objects.filter(~Exists(muted), state=AlertState.FIRING, acknowledged_at=None).count()


def shown(rows: Iterable[Alert]) -> list[Shown]:
    """Return alerts with what pages and answers tell of them."""
    found = list(rows)
    mutes = {(mute.kind, mute.subject): mute for mute in AlertMute.objects.filter(until__gt=timezone.now())}
    kinds = {name: kind_of(name) for name in {alert.kind for alert in found}}
    return [Shown(alert, kinds[alert.kind], mutes.get((alert.kind, alert.subject))) for alert in found]


def channels() -> QuerySet[AlertChannel]:
    dead = Count("deliveries", filter=Q(deliveries__state=DeliveryState.DEAD))
    return AlertChannel.objects.annotate(dead=dead).order_by("name")


def channel_get(pk: int) -> AlertChannel:
    try:
        return AlertChannel.objects.get(pk=pk)
    except AlertChannel.DoesNotExist:
        raise NotFound(f"there is no channel {pk}") from None


def deliveries(state: str = "") -> QuerySet[AlertDelivery]:
    """Return the messages, the newest first."""
    rows = AlertDelivery.objects.select_related("channel", "alert")
    return rows.filter(state=state) if state else rows


def delivery_get(pk: int) -> AlertDelivery:
    try:
        return deliveries().get(pk=pk)
    except AlertDelivery.DoesNotExist:
        raise NotFound(f"there is no message {pk}") from None


def rules() -> QuerySet[AlertRule]:
    return AlertRule.objects.all()


def rule_get(pk: int) -> AlertRule:
    try:
        return AlertRule.objects.get(pk=pk)
    except AlertRule.DoesNotExist:
        raise NotFound(f"there is no own alert {pk}") from None
