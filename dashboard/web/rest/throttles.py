"""Generous for work: a chunked upload is many requests. Counted in each web process."""

from rest_framework.throttling import UserRateThrottle


class UserThrottle(UserRateThrottle):
    scope = "user"
