"""What every template may use."""

from typing import Any

from django.http import HttpRequest

from dashboard.access.authorisation import Right, actor_of


def shell(request: HttpRequest) -> dict[str, Any]:
    """`may.operate`, `may.upload_code`, ...: what the person may do."""
    actor = actor_of(request)
    return {"may": {right.name.lower(): actor.may(right) for right in Right}}
