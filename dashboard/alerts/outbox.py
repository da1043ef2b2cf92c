"""The messages about alerts: made once for each alert and channel, sent by the process that claims them first.

    waiting --claim--> sending --answered--> sent
       ^                 |--failed, or its process died--> waiting, later than before
       |                 '--failed MOST_ATTEMPTS times---> dead --a person tries again--> waiting
       '-- dropped: quiet hours held it back until the alert was over, or nobody was told that it had begun

The receiver sees the same id in each attempt. A message is sent a second time only if a process was killed between the sending
and its record: then nobody can know whether it arrived.
"""

import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.alerts.formats import Message, message_of
from dashboard.alerts.senders import send
from dashboard.alerts.services import event_record
from dashboard.models import Alert, AlertChannel, AlertDelivery, AlertMute
from dashboard.shared.choices import AlertState, DeliveryState, Severity
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden
from repository.core.plain_text import plain

logger = logging.getLogger(__name__)

FIRED, RESOLVED, TEST = "fired", "resolved", "test"
CLAIM_S = 30.0  # a process that has sent for so long is taken for dead; senders give up earlier
BACKOFF_S = (5, 15, 45, 120, 300, 900, 3600)
MOST_ATTEMPTS = len(BACKOFF_S) + 1
_AT_ONCE = 20  # the most messages that one run sends


def alerts_tell(*, now: datetime | None = None, announce: Callable[[], object] | None = None) -> int:
    """Make the messages about alerts that nobody was told about, and return the number of alerts.

    announce: called after the commit, so that a worker sends them.
    """
    now = now or timezone.now()
    muted = set(AlertMute.objects.filter(until__gt=now).values_list("kind", "subject"))
    begun = Alert.objects.filter(state=AlertState.FIRING, told_at=None)
    ended = Alert.objects.filter(state=AlertState.RESOLVED, told_end_at=None).exclude(told_at=None)
    told = 0
    for alert in begun:
        if (alert.kind, alert.subject) not in muted:
            told += _tell(alert, FIRED, "told_at", AlertState.FIRING, now, announce)
    for alert in ended:
        told += _tell(alert, RESOLVED, "told_end_at", AlertState.RESOLVED, now, announce)
    return told


def _tell(
    alert: Alert, what: str, column: str, state: str, now: datetime, announce: Callable[[], object] | None
) -> bool:
    with transaction.atomic():
        if not Alert.objects.filter(pk=alert.pk, state=state, **{column: None}).update(**{column: now}):
            return False  # another process has told it
        channels = list(AlertChannel.objects.filter(enabled=True))
        for channel in channels:
            delivery_create(channel=channel, alert=alert, what=what, now=now)
        if channels and what == FIRED:
            event_record(alert, "told", text=", ".join(channel.name for channel in channels))
        if channels and announce is not None:
            transaction.on_commit(announce)
    return True


def delivery_create(*, channel: AlertChannel, alert: Alert | None, what: str, now: datetime) -> AlertDelivery:
    """Make a message. In the quiet hours of its channel, a message that is not critical waits for their end."""
    quiet = quiet_end(channel, now) if alert is not None and alert.severity != Severity.CRITICAL else None
    return AlertDelivery.objects.create(
        uid=uuid.uuid4(),
        alert=alert,
        channel=channel,
        what=what,
        held=quiet is not None,
        created_at=now,
        due_at=quiet or now,
    )


def quiet_end(channel: AlertChannel, now: datetime) -> datetime | None:
    """Return when the quiet hours of a channel end, or None if they are not now."""
    start, end = channel.quiet_from, channel.quiet_until
    if start is None or end is None or start == end:
        return None
    here = now.astimezone(ZoneInfo(channel.time_zone))
    clock = here.time().replace(tzinfo=None)
    within = start <= clock < end if start < end else clock >= start or clock < end
    if not within:
        return None
    day = here.date() + timedelta(days=1 if end <= clock else 0)
    found = datetime.combine(day, time(end.hour, end.minute), here.tzinfo)
    # Where clocks are put back, an hour comes twice: in its second turn the end is that of the second turn.
    return (found if found > now else found.replace(fold=1)).astimezone(UTC)


def deliveries_send(*, overdue_s: float = 0.0, now: Callable[[], datetime] = timezone.now) -> int:
    """Send the messages that are due for `overdue_s`, and return their number.

    If a message to a channel fails, the later ones to this channel wait for the next run.
    """
    _free_claims(now())
    due = AlertDelivery.objects.filter(
        state=DeliveryState.WAITING, due_at__lte=now() - timedelta(seconds=overdue_s)
    ).select_related("alert", "channel")
    sent, failing = 0, set[int]()
    for delivery in due.order_by("due_at", "pk")[:_AT_ONCE]:
        if delivery.channel_id not in failing:
            done = _send_one(delivery, now)
            sent += done is True
            if done is False:
                failing.add(delivery.channel_id)
    return sent


def _free_claims(now: datetime) -> None:
    """Let others send what a process that has died was sending."""
    lost = AlertDelivery.objects.filter(state=DeliveryState.SENDING, claimed_at__lt=now - timedelta(seconds=CLAIM_S))
    lost.update(state=DeliveryState.WAITING, due_at=now)


def _send_one(delivery: AlertDelivery, now: Callable[[], datetime]) -> bool | None:
    """Return whether a message was sent; None if another process sends it, or it need not be sent, or not yet."""
    if (need := _need(delivery, now())) is not None:
        AlertDelivery.objects.filter(pk=delivery.pk, state=DeliveryState.WAITING).update(**need)
        return None
    attempt = delivery.attempts + 1
    claimed = AlertDelivery.objects.filter(pk=delivery.pk, state=DeliveryState.WAITING, attempts=delivery.attempts)
    if not claimed.update(state=DeliveryState.SENDING, claimed_at=now(), attempts=attempt):
        return None
    own = AlertDelivery.objects.filter(pk=delivery.pk, state=DeliveryState.SENDING, attempts=attempt)
    try:
        send(delivery.channel, _message(delivery))
    except Exception as error:
        if not isinstance(error, DashboardError | OSError):
            logger.exception("a message of channel %s was not sent", delivery.channel.name)
        why = error.message if isinstance(error, DashboardError) else f"it was not sent ({type(error).__name__})"
        own.update(error=plain(why)[:300], **_after_failure(attempt, now(), final=isinstance(error, Forbidden)))
        return False
    own.update(state=DeliveryState.SENT, ended_at=now(), error="")
    return True


def _message(delivery: AlertDelivery) -> Message:
    return message_of(delivery)


def _after_failure(attempt: int, now: datetime, *, final: bool) -> dict[str, object]:
    if final or attempt >= MOST_ATTEMPTS:
        return {"state": DeliveryState.DEAD, "ended_at": now}
    return {"state": DeliveryState.WAITING, "due_at": now + timedelta(seconds=BACKOFF_S[attempt - 1])}


def _need(delivery: AlertDelivery, now: datetime) -> dict[str, object] | None:
    """Return the changes of a message that need not be sent, or not yet; None if it should be sent now."""
    dropped: dict[str, object] = {"state": DeliveryState.DROPPED, "ended_at": now}
    alert = delivery.alert
    if alert is None:
        return None
    if not delivery.channel.enabled:
        return dropped
    if delivery.what == FIRED:
        return dropped if delivery.held and not delivery.attempts and alert.state == AlertState.RESOLVED else None
    begin = AlertDelivery.objects.filter(alert=alert, channel=delivery.channel, what=FIRED).first()
    if begin is None or begin.state in (DeliveryState.DROPPED, DeliveryState.DEAD):
        return dropped
    if begin.state == DeliveryState.SENT:
        return None
    return {"due_at": max(begin.due_at, now) + timedelta(seconds=1)}  # the begin is told first


def delivery_retry(*, delivery: AlertDelivery, actor: Actor) -> AlertDelivery:
    """Send a message again that was given up; if it tells of a begin, the end of the alert is told after it. Raises Conflict if
    it was not given up."""
    require(actor, Right.ADMINISTER)
    now = timezone.now()
    with transaction.atomic():
        rows = AlertDelivery.objects.filter(pk=delivery.pk, state=DeliveryState.DEAD)
        if not rows.update(state=DeliveryState.WAITING, attempts=F("attempts") * 0, due_at=now, ended_at=None):
            raise Conflict(f"message {delivery.pk} was not given up, so there is nothing to send again")
        if delivery.what == FIRED:  # without its end, the receiver would have it open for ever
            ends = AlertDelivery.objects.filter(alert=delivery.alert, channel=delivery.channel, what=RESOLVED)
            ends.filter(state=DeliveryState.DROPPED).update(state=DeliveryState.WAITING, due_at=now, ended_at=None)
        summary = f"Sent a message of channel {delivery.channel.name} again"
        audit_record(actor=actor, action="alert.retry", summary=summary)
    delivery.refresh_from_db()
    return delivery


def deliveries_dead() -> int:
    """Return the number of messages that were given up."""
    return AlertDelivery.objects.filter(Q(state=DeliveryState.DEAD)).count()
