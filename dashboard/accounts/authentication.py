"""Who asks: by session, by token; and signing in by password, slowed down for whoever guesses (accounts.sign_in)."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from dashboard.access.authorisation import NOBODY, Actor
from dashboard.accounts.sign_in import client_address, sign_in_begin, sign_in_succeeded
from dashboard.accounts.tokens import token_authenticate


def actor_of_token(secret: str) -> Actor:
    """NOBODY where the token is unknown or has expired."""
    token = token_authenticate(secret=secret)
    return Actor(user=token.user, token=token) if token else NOBODY


class PatientBackend(ModelBackend):
    """Asks accounts.sign_in first whether there may be another attempt; `request.sign_in_wait` says in how many seconds."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> User | None:
        if username is None or password is None:
            return None
        who = {"name": username, "address": client_address(request)}
        if wait := sign_in_begin(**who):
            if request is not None:
                request.sign_in_wait = wait  # type: ignore[attr-defined]
            raise PermissionDenied
        user = super().authenticate(request, username=username, password=password, **more)
        if user is not None:
            sign_in_succeeded(**who)
        return user
