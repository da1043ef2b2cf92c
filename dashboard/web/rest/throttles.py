"""The rate limit of REST, a high one because an upload in chunks takes many requests. Each web process counts for itself."""

from rest_framework.throttling import UserRateThrottle


class UserThrottle(UserRateThrottle):
    scope = "user"
