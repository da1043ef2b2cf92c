"""Signing in by password, slowed down for whoever guesses."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AbstractBaseUser
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

MAX_FAILURES = 10
PAUSE_SECONDS = 600


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
