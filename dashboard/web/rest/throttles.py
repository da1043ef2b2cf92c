"""The rate limit of REST: high, for an upload in chunks is many requests. Each web process counts for itself."""

from rest_framework.throttling import UserRateThrottle


class UserThrottle(UserRateThrottle):
    scope = "user"
