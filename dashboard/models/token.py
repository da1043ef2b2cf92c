"""Tokens of the REST API and of inference; only their hashes are kept."""

from django.conf import settings
from django.db import models
from django.utils import timezone


class ApiToken(models.Model):
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)  # the token's first characters, to recognise it by
    hash = models.CharField(max_length=64, unique=True)  # SHA-256 of the whole token, in hex
    # TokenRight values; see access.authorisation.TOKEN_RIGHTS.
    rights: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)
    # The models that the token may infer with; empty for all models.
    model_names: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
