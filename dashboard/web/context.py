"""The variables that every template has."""

from django.http import HttpRequest

from dashboard.access.authorisation import Right, actor_of


def shell(request: HttpRequest) -> dict[str, object]:
    """Give templates `may.operate`, `may.upload_code`, ...: whether the person has the right of that name."""
    actor = actor_of(request)
    return {"may": {right.name.lower(): actor.may(right) for right in Right}}
