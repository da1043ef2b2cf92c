"""The rate limit of REST. It is high because an upload in chunks takes many requests. Each web process counts for itself."""

from rest_framework.throttling import UserRateThrottle


class UserThrottle(UserRateThrottle):
    scope = "user"
