"""Counts of failed sign-ins, in the database because every web process must see them."""

from django.db import models


class SignInCount(models.Model):
    """How many attempts to sign in had a name, an address, or both, in a span of time.

    `key` is a hash, because a person may type a password in place of the name.
    """

    key = models.CharField(max_length=64, primary_key=True)
    attempts = models.PositiveIntegerField()
    ends_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.attempts} until {self.ends_at}"
