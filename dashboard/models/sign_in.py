"""How often somebody failed to sign in, kept where every web process sees it."""

from django.db import models


class SignInCount(models.Model):
    """Attempts for a name, from an address, or both, in a span of time. `key` is a hash: who types a password as the name
    must not find it here."""

    key = models.CharField(max_length=64, primary_key=True)
    attempts = models.PositiveIntegerField()
    ends_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.attempts} until {self.ends_at}"
