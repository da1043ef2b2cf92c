"""The actor of a browser's session."""

from importlib import import_module
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase

from dashboard.access.authorisation import NOBODY, Actor

SessionStore = import_module(settings.SESSION_ENGINE).SessionStore


class Carrier(NamedTuple):
    """The part of a request that django.contrib.auth reads."""

    session: SessionBase


def actor_of_session(key: str | None) -> Actor:
    """Return the actor of a session, or NOBODY if the session has ended or the person is not active any more."""
    user = get_user(Carrier(SessionStore(key)))  # type: ignore[arg-type]  # get_user reads only the session
    return Actor(user=user) if isinstance(user, User) else NOBODY
