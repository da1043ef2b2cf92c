"""Alerts, their history, their mutes, the channels by which people are told, and the messages to be sent."""

from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from django.db import models
from django.urls import Resolver404, resolve
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.shared.choices import AlertState, ChannelKind, DeliveryState, Severity

OPEN = (AlertState.PENDING, AlertState.FIRING)


class Alert(models.Model):
    """One episode of a condition on a subject. alerts.life draws its states; only one episode is open at a time.

    kind: a key of alerts.table, or "rule-<id>" of an AlertRule. subject: the name of the model, server, process, token, ...
    address: the page that leads to the cause, as it was when the condition began; if the alert is about one server, it names
    that server. since: when the condition began. seen_at: when it held last. told_at, told_end_at: when the messages about its
    begin and its end were made; each of the two is set once.
    """

    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=220)
    model_name = models.CharField(max_length=200, blank=True, default="", db_index=True)
    severity = models.CharField(max_length=8, choices=Severity.choices)
    state = models.CharField(max_length=8, choices=AlertState.choices, default=AlertState.PENDING)
    title = models.CharField(max_length=300)
    detail = models.TextField(blank=True, default="")
    address = models.CharField(max_length=500, blank=True, default="")
    since = models.DateTimeField(default=timezone.now)
    seen_at = models.DateTimeField(default=timezone.now)
    fired_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    told_at = models.DateTimeField(null=True)
    told_end_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by_name = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["-fired_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=models.Q(state__in=OPEN), name="alert_open_once"
            )
        ]
        indexes = [models.Index(fields=["state", "-resolved_at"], name="alert_of_state")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject}: {self.state}"

    @property
    def server_name(self) -> str:
        """The server that the alert is about, by its address; "" for none."""
        parts = urlsplit(self.address)
        with suppress(Resolver404):
            found = resolve(parts.path)
            if found.url_name == "server":
                return str(found.kwargs["name"])
        return parse_qs(parts.query).get("server", [""])[0]

    @property
    def cause_address(self) -> str:
        """The page that leads to the cause. One that shows the time from a moment on shows it until the alert's end."""
        page, mark, anchor = self.address.partition("#")
        if self.resolved_at is None or "from=" not in page:
            return self.address
        return f"{page}&to={int(self.resolved_at.timestamp()) + 1}{mark}{anchor}"


class AlertEvent(models.Model):
    """One line of an alert's history. what: fired, told, acknowledged, muted, unmuted, resolved. who: "system" or a person."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    what = models.CharField(max_length=16)
    who = models.CharField(max_length=150, default="system")
    text = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.alert_id}: {self.what} by {self.who}"


class AlertMute(models.Model):
    """Nobody is told about this kind of alert on this subject until a moment."""

    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=220)
    until = models.DateTimeField()
    by_name = models.CharField(max_length=150)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "subject"], name="alert_mute_once")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject} until {self.until}"


class AlertOff(models.Model):
    """A default kind of alert that is switched off: for one model, or with model=None for the whole installation."""

    kind = models.CharField(max_length=40)
    model = models.ForeignKey(Model, null=True, on_delete=models.CASCADE, related_name="alerts_off")
    by_name = models.CharField(max_length=150)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["kind", "model__name"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "model"], name="alert_off_once"),
            models.UniqueConstraint(fields=["kind"], condition=models.Q(model=None), name="alert_off_whole_once"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.model or 'everything'} is off"


class AlertRule(models.Model):
    """An alert of a person's own: a charted figure that is above or below a value for some minutes.

    figure: a key of alerts.figures.FIGURES. model_name: "" for a whole server.
    """

    name = models.CharField(max_length=100, unique=True)
    figure = models.CharField(max_length=32)
    model_name = models.CharField(max_length=200, blank=True, default="")
    above = models.BooleanField(default=True)
    threshold = models.FloatField()
    minutes = models.PositiveSmallIntegerField(default=5)
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARNING)
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class AlertChannel(models.Model):
    """A way to tell people. address: an e-mail address, or the URL that messages are posted to.

    secret: the key of a webhook's signatures, or PagerDuty's routing key; no page and no answer shows it again.
    quiet_from, quiet_until: the hours of the day in `time_zone` in which only critical alerts are sent; null for none.
    """

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=12, choices=ChannelKind.choices)
    address = models.CharField(max_length=500)
    secret = models.CharField(max_length=200, blank=True, default="")
    enabled = models.BooleanField(default=True)
    quiet_from = models.TimeField(null=True)
    quiet_until = models.TimeField(null=True)
    time_zone = models.CharField(max_length=64, default="UTC")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class AlertDelivery(models.Model):
    """One message of the outbox. alerts.outbox draws its states.

    alert: None for a test. what: fired, resolved or test. held: it waits for the end of quiet hours.
    uid: the receiver sees this id, the same in each attempt. attempts: also a fencing token of the process that sends.
    """

    uid = models.UUIDField(unique=True)
    alert = models.ForeignKey(Alert, null=True, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(AlertChannel, on_delete=models.CASCADE, related_name="deliveries")
    what = models.CharField(max_length=8)
    state = models.CharField(max_length=8, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    held = models.BooleanField(default=False)
    attempts = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(default=timezone.now)
    claimed_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["alert", "channel", "what"],
                condition=models.Q(alert__isnull=False),
                name="alert_delivery_once",
            )
        ]
        indexes = [models.Index(fields=["state", "due_at"], name="alert_delivery_due")]

    def __str__(self) -> str:
        return f"{self.what} to {self.channel}: {self.state}"
