"""Evaluates the alerts, and records what people do with them.

Several processes may evaluate at the same time. A row is made only once because of the constraint `alert_open_once`, and each
later move is one statement that checks the old state; only the process whose statement changed the row goes on.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice

from django.conf import settings
from django.db import Error, IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.alerts.facts import Facts, Finding
from dashboard.alerts.life import Episode, Move, next_move, tells_already
from dashboard.alerts.table import AlertKind, kinds
from dashboard.models import Alert, AlertDelivery, AlertEvent, AlertMute, Model
from dashboard.models.alert import OPEN
from dashboard.shared.changes import quietly
from dashboard.shared.choices import AlertState
from dashboard.shared.exceptions import Conflict, Invalid
from repository.core.plain_text import plain

logger = logging.getLogger(__name__)

MOST_MUTE_MINUTES = 30 * 24 * 60
_MOST_DETAIL = 2000
_FINDINGS = 500  # the most of one kind: more would be one fault told in too many messages


def alerts_evaluate(*, now: datetime | None = None, only: Iterable[str] = ()) -> str:
    """Bring the alerts to the state of everything; return what failed, "" for nothing. only: names of kinds, none for all.

    A finder that fails changes nothing: its alerts stay as they are.
    """
    now = now or timezone.now()
    facts, failed, names = Facts(now), [], set(only)
    for kind in kinds():
        if names and kind.name not in names:
            continue
        try:
            off = facts.off.get(kind.name, ())
            found = () if "" in off else islice((f for f in kind.find(facts) if f.model_name not in off), _FINDINGS)
            _settle(kind, {one.subject: one for one in found}, now)
        except Error:
            raise
        except Exception:
            logger.exception("the alert %s was not evaluated", kind.name)
            failed.append(kind.name)
    return f"not evaluated: {', '.join(failed)}" if failed else ""


def _settle(kind: AlertKind, found: dict[str, Finding], now: datetime) -> None:
    rows = {alert.subject: alert for alert in Alert.objects.filter(kind=kind.name, state__in=OPEN)}
    if seen := [alert.pk for subject, alert in rows.items() if subject in found]:
        with quietly():
            Alert.objects.filter(pk__in=seen, state__in=OPEN).update(seen_at=now)
    for subject in [*rows, *(subject for subject in found if subject not in rows)]:
        alert, finding = rows.get(subject), found.get(subject)
        if (
            finding is not None
            and (alert is None or alert.state == AlertState.PENDING)
            and _told_already(kind, subject, now)
        ):
            continue
        if alert is None and finding is not None and finding.opens:
            alert = _open(kind, finding, now)
        if alert is not None:
            _advance(kind, alert, finding, now)


def _told_already(kind: AlertKind, subject: str, now: datetime) -> bool:
    """Return whether another alert that tells the same fault fires, or fired a moment ago."""
    if not kind.unless:
        return False
    longest = timedelta(seconds=max(kind.unless.values()))
    rows = Alert.objects.filter(subject=subject, kind__in=list(kind.unless)).exclude(fired_at=None)
    rows = rows.filter(Q(resolved_at=None) | Q(resolved_at__gte=now - longest))
    episodes = [
        Episode(name, ended.timestamp() if ended is not None else None)
        for name, ended in rows.values_list("kind", "resolved_at")
    ]
    return tells_already(kind.unless, episodes, now.timestamp())


def _open(kind: AlertKind, finding: Finding, now: datetime) -> Alert | None:
    try:
        with transaction.atomic():
            return Alert.objects.create(
                kind=kind.name,
                subject=finding.subject,
                model_name=finding.model_name,
                severity=finding.severity or kind.severity,
                title=plain(finding.title)[:300],
                detail=plain(finding.detail)[:_MOST_DETAIL],
                address=finding.address[:500],
                since=now,
                seen_at=now,
            )
    except IntegrityError:  # another process has opened it
        return None


def _advance(kind: AlertKind, alert: Alert, finding: Finding | None, now: datetime) -> None:
    move = next_move(
        alert.state,
        found=finding is not None,
        now=now.timestamp(),
        since=alert.since.timestamp(),
        seen_at=alert.seen_at.timestamp(),
        hold_s=kind.hold_s,
        clear_s=kind.clear_s,
    )
    rows = Alert.objects.filter(pk=alert.pk, state=alert.state)
    if move == Move.DISCARD:
        rows.filter(seen_at__lte=now - timedelta(seconds=kind.hold_s)).delete()
    elif move == Move.FIRE and finding is not None:
        # The figures of the moment in which it fires are those that people are told.
        title, detail = plain(finding.title)[:300], plain(finding.detail)[:_MOST_DETAIL]
        with transaction.atomic():
            if rows.update(state=AlertState.FIRING, fired_at=now, title=title, detail=detail):
                event_record(alert, "fired")
    elif move == Move.RESOLVE:
        still = timedelta(seconds=kind.clear_s)
        with transaction.atomic():
            if rows.filter(seen_at__lte=now - still).update(state=AlertState.RESOLVED, resolved_at=now):
                event_record(alert, "resolved")


def event_record(alert: Alert, what: str, who: str = "system", text: str = "") -> None:
    AlertEvent.objects.create(alert=alert, what=what, who=who, text=text[:300])


def alert_acknowledge(*, alert: Alert, actor: Actor) -> Alert:
    """Record that somebody works on an alert. Raises Conflict if it does not fire, or somebody has acknowledged it."""
    require(actor, Right.OPERATE)
    now = timezone.now()
    with transaction.atomic():
        rows = Alert.objects.filter(pk=alert.pk, state=AlertState.FIRING, acknowledged_at=None)
        if not rows.update(acknowledged_at=now, acknowledged_by_name=actor.name):
            alert.refresh_from_db()
            by = (
                f": {alert.acknowledged_by_name} has acknowledged it" if alert.acknowledged_at else ": it does not fire"
            )
            raise Conflict(f"alert {alert.pk} cannot be acknowledged{by}")
        event_record(alert, "acknowledged", actor.name)
        _audit(alert, actor, "alert.acknowledge", f"Acknowledged: {alert.title}")
    alert.refresh_from_db()
    return alert


def alert_mute(*, alert: Alert, actor: Actor, minutes: int) -> Alert:
    """Tell nobody about this kind of alert on this subject for some minutes. If it still fires then, people are told."""
    require(actor, Right.OPERATE)
    if not 0 < minutes <= MOST_MUTE_MINUTES:
        raise Invalid.at("minutes", f"expected 1 to {MOST_MUTE_MINUTES} minutes, got {minutes}")
    until = timezone.now() + timedelta(minutes=minutes)
    with transaction.atomic():
        AlertMute.objects.update_or_create(
            kind=alert.kind, subject=alert.subject, defaults={"until": until, "by_name": actor.name}
        )
        event_record(alert, "muted", actor.name, f"until {until:%Y-%m-%d %H:%M} UTC")
        _audit(alert, actor, "alert.mute", f"Muted for {minutes} minutes: {alert.title}")
    return alert


def alert_unmute(*, alert: Alert, actor: Actor) -> Alert:
    """End the mute of this kind of alert on this subject. Raises Conflict if it is not muted."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        if not AlertMute.objects.filter(kind=alert.kind, subject=alert.subject).delete()[0]:
            raise Conflict(f"alert {alert.pk} is not muted")
        event_record(alert, "unmuted", actor.name)
        _audit(alert, actor, "alert.unmute", f"Told again: {alert.title}")
    return alert


def alerts_close(*, kind: str, actor: Actor, why: str, model_name: str = "") -> None:
    """Resolve the open alerts of a kind that is removed or switched off, of one model or of all. Call this inside the
    transaction that does so."""
    found = Alert.objects.filter(kind=kind, **({"model_name": model_name} if model_name else {}))
    found.filter(state=AlertState.PENDING).delete()
    for alert in found.filter(state=AlertState.FIRING):
        rows = Alert.objects.filter(pk=alert.pk, state=AlertState.FIRING)
        if rows.update(state=AlertState.RESOLVED, resolved_at=timezone.now()):
            event_record(alert, "resolved", actor.name, why)


def alerts_forget() -> int:
    """Remove alerts that ended more than settings.ALERT_DAYS ago, mutes that are over, and messages of tests."""
    now = timezone.now()
    cut = now - timedelta(days=settings.ALERT_DAYS)
    AlertMute.objects.filter(until__lt=now).delete()
    AlertDelivery.objects.filter(alert=None, created_at__lt=cut).delete()
    return Alert.objects.filter(state=AlertState.RESOLVED, resolved_at__lt=cut).delete()[1].get("dashboard.Alert", 0)


def _audit(alert: Alert, actor: Actor, action: str, summary: str) -> None:
    model = Model.objects.filter(name=alert.model_name).first() if alert.model_name else None
    audit_record(actor=actor, action=action, summary=summary, model=model, after={"alert": alert.pk})
