"""Reads of tokens for pages and the API."""

from django.contrib.auth.models import User
from django.db.models import QuerySet

from dashboard.models import ApiToken


def tokens(user: User) -> QuerySet[ApiToken]:
    """Return the tokens of one person."""
    return ApiToken.objects.filter(user=user).select_related("user")
