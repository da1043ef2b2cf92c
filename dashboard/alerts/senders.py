"""Sends one message to a channel: an e-mail by Django, or JSON by `posting`, signed for a webhook.

A webhook's receiver computes HMAC-SHA256, with the secret, of the header `Slipway-Timestamp`, a full stop and the body, and
compares it with the header `Slipway-Signature` ("v1=" and the hexadecimal digest). It refuses old timestamps, so that nobody
can send a recorded message again, and takes each `Slipway-Delivery` once.
"""

import hashlib
import hmac
import json
import smtplib
import time

from django.conf import settings
from django.core.mail import EmailMessage

from dashboard.alerts.formats import FORMATS, Message
from dashboard.alerts.posting import post
from dashboard.models import AlertChannel
from dashboard.shared.choices import ChannelKind
from dashboard.shared.exceptions import Unavailable


def send(channel: AlertChannel, message: Message) -> None:
    """Send a message. Raises Forbidden if the channel's address is not allowed, and Unavailable for other failures."""
    if channel.kind == ChannelKind.EMAIL:
        _mail(channel, message)
        return
    form = FORMATS[channel.kind]
    body = json.dumps(form.body(message, channel), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "Slipway-Delivery": message.uid}
    if form.signed:
        now = str(int(time.time()))
        headers |= {"Slipway-Timestamp": now, "Slipway-Signature": signature(channel.secret, now, body)}
    post(channel.address, body, headers)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the header by which a receiver knows that a message is ours."""
    return "v1=" + hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def _mail(channel: AlertChannel, message: Message) -> None:
    domain = settings.DEFAULT_FROM_EMAIL.rpartition("@")[2].rstrip(">") or "slipway"
    # The same id in each attempt: mail programs show one message.
    headers = {"Message-ID": f"<{message.uid}@{domain}>", "Auto-Submitted": "auto-generated"}
    subject = " ".join(message.headline.split())  # a header is one line, whatever the names in it have
    mail = EmailMessage(subject[:200], message.text, to=[channel.address], headers=headers)
    try:
        mail.send()
    except (OSError, smtplib.SMTPException) as error:
        raise Unavailable(f"the mail server did not take the message ({type(error).__name__})") from None
