"""Who uses what, and quotas."""

from collections.abc import Iterator

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models

from dashboard.models.token import ApiToken


class UsageDay(models.Model):
    """What a token has used of a model on one day in UTC, and whose it was. Rows outlive the token and the person."""

    day = models.DateField()
    token_hash = models.CharField(max_length=64)  # ApiToken.hash
    model_name = models.CharField(max_length=200)
    token_name = models.CharField(max_length=300, blank=True, default="")
    person = models.CharField(max_length=150, blank=True, default="")  # "" for the dashboard itself
    groups: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)
    # The totals of the day: see repository.core.usage_log.COUNTERS.
    requests = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    rows = models.BigIntegerField(default=0)
    compute_ns = models.BigIntegerField(default=0)
    bytes_in = models.BigIntegerField(default=0)
    bytes_out = models.BigIntegerField(default=0)
    tokens_in = models.BigIntegerField(default=0)
    tokens_out = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "token_hash", "model_name"], name="usage_once")]
        indexes = [models.Index(fields=["person", "day"])]

    def __str__(self) -> str:
        return f"{self.person}: {self.token_name} with {self.model_name} on {self.day}"


class UsageFile(models.Model):
    """How far the usage log of a day is read. Who writes the day's rows holds a lock on this row."""

    day = models.DateField(unique=True)
    sequence = models.BigIntegerField(default=0)  # of the last record
    written_at = models.FloatField(default=0)  # when the server wrote it, in Unix seconds
    damaged = models.PositiveIntegerField(default=0)  # how many records could not be read

    def __str__(self) -> str:
        return str(self.day)


class Quota(models.Model):
    """Limits of one token, person or group: exactly one of the three is set. A limit that is None does not limit."""

    token = models.OneToOneField(ApiToken, on_delete=models.CASCADE, null=True, related_name="quota")
    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="quota")
    group = models.OneToOneField(Group, on_delete=models.CASCADE, null=True, related_name="quota")
    requests_per_day = models.BigIntegerField(null=True)
    rows_per_day = models.BigIntegerField(null=True)
    compute_seconds_per_day = models.FloatField(null=True)
    requests_per_second = models.FloatField(null=True)

    LIMITS = ("requests_per_day", "rows_per_day", "compute_seconds_per_day", "requests_per_second")

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.CheckConstraint(
                name="quota_of_one",
                condition=models.Q(token__isnull=False, user__isnull=True, group__isnull=True)
                | models.Q(token__isnull=True, user__isnull=False, group__isnull=True)
                | models.Q(token__isnull=True, user__isnull=True, group__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"{self.of} {self.name}"

    @property
    def of(self) -> str:
        """Return "token", "person" or "group"."""
        return "token" if self.token_id else "person" if self.user_id else "group"

    @property
    def name(self) -> str:
        """Return the first characters of the token, or the name of the person or group."""
        if self.token is not None:
            return self.token.prefix
        return self.user.get_username() if self.user is not None else self.group.name if self.group is not None else ""

    @property
    def label(self) -> str:
        """Return the name of the token and its person, or the name of the person or group."""
        return f"{self.token.user.get_username()}: {self.token.name}" if self.token is not None else self.name

    def limits(self) -> Iterator[tuple[str, float]]:
        """Return the limits that are set, by their names."""
        for name in self.LIMITS:
            value = getattr(self, name)
            if value is not None:
                yield name, value
