"""What SLIPWAY_SERVER_FLAGS says of a flag of the bundled server."""

from django.conf import settings


def flag(name: str) -> str:
    """Return the value of a flag, the last one where it is repeated, "true" for one without; "" where it is not there."""
    for said in reversed(settings.SERVER_FLAGS):
        key, equals, value = said.partition("=")
        if key == name:
            return str(value) if equals else "true"
    return ""


def is_on(name: str) -> bool:
    """Whether a switch is on, as the server reads it."""
    return flag(name).lower() in ("true", "1", "on", "yes")
