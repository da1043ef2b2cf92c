"""Who asks: by session, by token; and signing in by password, slowed down for whoever guesses."""

from importlib import import_module
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.sessions.backends.base import SessionBase
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from dashboard.authorisation import NOBODY, Actor
from dashboard.services.tokens import token_authenticate

SessionStore = import_module(settings.SESSION_ENGINE).SessionStore

MAX_FAILURES = 10
PAUSE_SECONDS = 600


class Carrier(NamedTuple):
    """What django.contrib.auth asks of a request."""

    session: SessionBase


def actor_of_session(key: str) -> Actor:
    """NOBODY where the session has ended."""
    user = get_user(Carrier(SessionStore(key)))
    return Actor(user=user) if user.is_authenticated else NOBODY


def actor_of_token(secret: str) -> Actor:
    """NOBODY where the token is unknown or has expired."""
    token = token_authenticate(secret=secret)
    return Actor(user=token.user, token=token) if token else NOBODY


class PatientBackend(ModelBackend):
    """After MAX_FAILURES for one name from one address, no password is right for a while."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> AbstractBaseUser | None:
        key = _key(request, username)
        if cache.get(key, 0) >= MAX_FAILURES:
            raise PermissionDenied
        user = super().authenticate(request, username=username, password=password, **more)
        if user is None and username is not None:
            cache.set(key, cache.get(key, 0) + 1, PAUSE_SECONDS)
        elif user is not None:
            cache.delete(key)
        return user


def paused(request: HttpRequest, username: str) -> bool:
    """Whether the sign-in page should say that it is waiting."""
    return bool(cache.get(_key(request, username), 0) >= MAX_FAILURES)


def _key(request: HttpRequest | None, username: str | None) -> str:
    address = request.META.get("REMOTE_ADDR", "") if request is not None else ""
    return f"sign-in-failures:{address}:{hash(username)}"
