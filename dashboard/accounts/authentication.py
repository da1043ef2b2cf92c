"""Authentication by token, and by password with a limit against guessing (accounts.sign_in)."""

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from dashboard.access.authorisation import NOBODY, Actor
from dashboard.accounts.sign_in import client_address, sign_in_begin, sign_in_succeeded
from dashboard.accounts.tokens import token_authenticate


def actor_of_token(secret: str) -> Actor:
    """Return the actor of a token, or NOBODY if the token is unknown or has expired."""
    token = token_authenticate(secret=secret)
    return Actor(user=token.user, token=token) if token else NOBODY


class ThrottledBackend(ModelBackend):
    """Django's ModelBackend, with the limit on attempts from accounts.sign_in.

    Raises PermissionDenied after too many attempts. Then `request.sign_in_wait` is the time in seconds until the next attempt
    is allowed.
    """

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: object
    ) -> User | None:
        if username is None or password is None:
            return None
        counted = {"name": username, "address": client_address(request)}
        if wait := sign_in_begin(**counted):
            if request is not None:
                request.sign_in_wait = wait  # type: ignore[attr-defined]  # read by SignIn
            raise PermissionDenied
        user = super().authenticate(request, username=username, password=password, **more)
        if user is not None:
            sign_in_succeeded(**counted)
        return user
