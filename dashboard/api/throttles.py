"""Generous for work, narrow for guessing tokens. Counted in each web process."""

from rest_framework.throttling import AnonRateThrottle, UserRateThrottle


class AnonymousThrottle(AnonRateThrottle):
    scope = "anonymous"


class UserThrottle(UserRateThrottle):
    scope = "user"
