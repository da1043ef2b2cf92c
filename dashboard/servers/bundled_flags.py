"""Flags of the bundled server, read from SLIPWAY_SERVER_FLAGS."""

from django.conf import settings


def flag(name: str) -> str:
    """Return the value of a flag, the last one if it is repeated; "true" for a flag without value, "" for an absent one."""
    for text in reversed(settings.SERVER_FLAGS):
        key, equals, value = text.partition("=")
        if key == name:
            return str(value) if equals else "true"
    return ""


def is_on(name: str) -> bool:
    """Return whether a switch is on, by the server's rules."""
    return flag(name).lower() in ("true", "1", "on", "yes")
