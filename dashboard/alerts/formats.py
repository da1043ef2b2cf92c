"""What a channel is sent about an alert: a sentence for people, or the JSON of a webhook, of Slack or of PagerDuty.

Sources: PagerDuty, "Events API v2"; Slack, "Sending messages using incoming webhooks" and "Formatting text for app surfaces".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.urls import reverse

from dashboard.alerts.table import button_of, kind_of
from dashboard.models import AlertChannel, AlertDelivery
from dashboard.shared.choices import ChannelKind, Severity

PAGERDUTY_ADDRESS = "https://events.pagerduty.com/v2/enqueue"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. uid: its id, the same in each attempt. episode: the same for the begin and the end of an alert.

    what: fired, resolved or test. link: the page of the alert, cause: the page that leads to its cause, button: what that page
    shows; of both pages only the paths if settings.PUBLIC_URL is not set.
    """

    uid: str
    episode: str
    what: str
    kind: str
    subject: str
    severity: str
    title: str
    detail: str
    means: str
    do: str
    link: str
    at: datetime
    cause: str = ""
    button: str = ""

    @property
    def headline(self) -> str:
        word = {"fired": "Firing", "resolved": "Resolved", "test": "Test"}[self.what]
        return f"[{word}] {self.title}"

    @property
    def text(self) -> str:
        """All of it as plain text."""
        cause = f"{self.button}: {self.cause}" if self.cause else ""
        parts = [self.title + ".", self.detail, self.means, self.do if self.what == "fired" else "", cause, self.link]
        return "\n\n".join(part for part in parts if part)


def message_of(delivery: AlertDelivery) -> Message:
    """Return the message of a row of the outbox."""
    alert, uid = delivery.alert, str(delivery.uid)
    if alert is None:
        title, detail = "This is a test", f"Channel {delivery.channel.name} of Slipway works."
        link = settings.PUBLIC_URL + reverse("alerts")
        return Message(uid, uid, "test", "test", "", Severity.WARNING, title, detail, "", "", link, delivery.created_at)
    kind = kind_of(alert.kind)
    at = alert.resolved_at if delivery.what == "resolved" else alert.fired_at
    return Message(
        uid,
        f"slipway-alert-{alert.pk}",
        delivery.what,
        alert.kind,
        alert.subject,
        alert.severity,
        alert.title,
        alert.detail,
        kind.means if kind else "",
        kind.do if kind else "",
        settings.PUBLIC_URL + reverse("alert", args=[alert.pk]),
        at or delivery.created_at,
        settings.PUBLIC_URL + alert.cause_address if alert.address else "",
        button_of(kind, alert.address),
    )


def webhook(message: Message, _: AlertChannel) -> Mapping[str, object]:
    return {
        "id": message.uid,
        "alert": message.episode,
        "event": message.what,
        "kind": message.kind,
        "subject": message.subject,
        "severity": message.severity,
        "title": message.title,
        "detail": message.detail,
        "means": message.means,
        "do": message.do,
        "link": message.link,
        "cause": message.cause,
        "at": message.at.isoformat(),
    }


def slack(message: Message, _: AlertChannel) -> Mapping[str, object]:
    escaped = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"*{message.headline}*\n{escaped}"}


def pagerduty(message: Message, channel: AlertChannel) -> Mapping[str, object]:
    return {
        "routing_key": channel.secret,
        "event_action": "resolve" if message.what == "resolved" else "trigger",
        "dedup_key": message.episode,
        "payload": {
            "summary": message.title[:1024],
            "source": "slipway",
            "severity": "info" if message.what == "test" else str(message.severity),
            "class": message.kind,
            **({"component": message.subject} if message.subject else {}),
            "timestamp": message.at.isoformat(),
            "custom_details": {"detail": message.detail, "means": message.means, "do": message.do},
        },
        **({"links": _links(message)} if settings.PUBLIC_URL else {}),
    }


def _links(message: Message) -> list[Mapping[str, str]]:
    cause = [{"href": message.cause, "text": message.button}] if message.cause else []
    return [{"href": message.link, "text": "Slipway"}, *cause]


@dataclass(frozen=True, slots=True)
class Format:
    """body: the JSON of a message. signed: whether it is signed with the channel's secret."""

    body: Callable[[Message, AlertChannel], Mapping[str, object]]
    signed: bool = False


FORMATS: Mapping[str, Format] = {
    ChannelKind.WEBHOOK: Format(webhook, signed=True),
    ChannelKind.SLACK: Format(slack),
    ChannelKind.PAGERDUTY: Format(pagerduty),
}
