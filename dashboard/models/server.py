"""Inference servers, the states that they report of themselves and of their models, and their events."""

from typing import Any

from django.db import models
from django.utils import timezone

from dashboard.models.environment import PRODUCTION, ServerEnvironment
from dashboard.models.model import Model
from dashboard.shared.choices import EventKind, ModelStatus, ServerStatus, version_word
from repository.core.condition import Condition


class Server(models.Model):
    """An inference server. The control key of the bundled server is not in the database.

    environment: never empty, except for rows that the last release made; such servers count as production. named_at: when the
    environment's DNS name or Kubernetes service last led to the server, None for a server that a person or `up` listed.
    zone: where it runs, as the people who run it call it; "" if nobody has said.
    leaving: its pod has been told to end, so nothing is loaded there any more.
    """

    name = models.SlugField(max_length=64, unique=True)
    http_url = models.CharField(max_length=300)
    grpc_url = models.CharField(max_length=300)
    metrics_url = models.CharField(max_length=300)
    bundled = models.BooleanField(default=False)
    environment = models.ForeignKey(ServerEnvironment, null=True, on_delete=models.CASCADE, related_name="servers")
    named_at = models.DateTimeField(null=True)
    zone = models.CharField(max_length=64, blank=True, default="", db_default="")
    leaving = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-bundled", "name"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.environment_id is None:
            self.environment, _ = ServerEnvironment.objects.get_or_create(name=PRODUCTION)
        super().save(*args, **kwargs)

    @property
    def driven(self) -> bool:
        """Whether `watch` brings the server to what is wanted."""
        return (self.environment is None or self.environment.driven) and not self.leaving


class ServerState(models.Model):
    """The state of a server. `up` writes the state of the process, and `watch` its health; pages read both."""

    server = models.OneToOneField(Server, on_delete=models.CASCADE, related_name="state", primary_key=True)
    state = models.CharField(max_length=16, choices=ServerStatus.choices, default=ServerStatus.STOPPED)
    pid = models.PositiveIntegerField(null=True)
    instance = models.CharField(max_length=64, blank=True, default="")  # the id that the server gave its process
    started_at = models.DateTimeField(null=True)
    restarts = models.PositiveIntegerField(default=0)
    last_reason = models.CharField(max_length=500, blank=True, default="")
    checked_at = models.DateTimeField(null=True)
    restart_requested_at = models.DateTimeField(null=True)  # set by server_restart, cleared by `up`
    info: "models.JSONField[dict[str, object], dict[str, object]]" = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.server}: {self.state}"


class ModelState(models.Model):
    """A server's last report of one version; written by `watch`."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="model_states")
    model_name = models.CharField(max_length=200, db_index=True)
    version = models.PositiveBigIntegerField()
    state = models.CharField(max_length=16, choices=ModelStatus.choices)
    reason = models.TextField(blank=True, default="")
    condition = models.CharField(max_length=16, blank=True, default="")  # repository.core.condition.Condition
    failed = models.BooleanField(default=False)  # its last load failed
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["model_name", "-version"]
        constraints = [models.UniqueConstraint(fields=["server", "model_name", "version"], name="model_state_once")]

    def __str__(self) -> str:
        return f"{self.model_name} {self.version} on {self.server}: {self.state}"

    @property
    def asleep(self) -> bool:
        """True if the next request of the version would load it."""
        return self.word == Condition.ASLEEP

    @property
    def word(self) -> str:
        """Its state in one word, from choices.version_word."""
        return version_word(self.state, self.condition, self.failed)

    @property
    def complaint(self) -> str:
        """The reason of its state; "" if the word needs no reason."""
        return "" if self.word in ("asleep", "unloading", "unloaded") else self.reason


class ModelSync(models.Model):
    """The generation of a model that `watch` applied last to one server, and the failures since then.

    The server is in sync if applied_generation equals the model's generation and instance is the server's present process.
    """

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="syncs")
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="syncs")
    applied_generation = models.PositiveBigIntegerField(default=0)
    instance = models.CharField(max_length=64, blank=True, default="")
    # The release of the last load that succeeded, for a server that does not report its release.
    release = models.ForeignKey("Release", null=True, on_delete=models.SET_NULL, related_name="+")
    # Whether a load sent a configuration in place of the folder's to the present process, which keeps it until files
    # change.
    override = models.BooleanField(default=False)
    attempts = models.PositiveIntegerField(default=0)  # the number of failed attempts in a row
    error = models.TextField(blank=True, default="")
    attempted_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["server", "model"], name="model_sync_once")]

    def __str__(self) -> str:
        return f"{self.model} on {self.server}: {self.applied_generation}"


class ServerEvent(models.Model):
    """An event of a server, which the server's charts show as a marker."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=24, choices=EventKind.choices)
    # "" for the server itself, else the name of another process of `up`.
    process = models.CharField(max_length=32, blank=True, default="")
    model_name = models.CharField(max_length=200, blank=True, default="")
    message = models.TextField(blank=True, default="")

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["server", "-at"])]

    def __str__(self) -> str:
        return f"{self.server} {self.kind}: {self.message}"
