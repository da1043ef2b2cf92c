"""Tokens: made once, kept as hashes, checked in constant time by the hash's index."""

from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser

from dashboard.authorisation import Actor
from dashboard.models import ApiToken


def token_create(
    *,
    user: AbstractBaseUser,
    actor: Actor,
    name: str,
    rights: list[str],
    expires_at: datetime | None = None,
    model_names: list[str] | None = None,
) -> tuple[ApiToken, str]:
    """The row and the token itself, which is shown once and never again."""
    raise NotImplementedError


def token_revoke(*, token: ApiToken, actor: Actor) -> None:
    raise NotImplementedError


def token_authenticate(*, secret: str) -> ApiToken | None:
    """The token's row, unless it is unknown, expired, or its person inactive."""
    raise NotImplementedError
