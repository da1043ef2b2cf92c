"""Checks of the environment's variables."""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from urllib.parse import urlsplit

from django.conf import settings

from dashboard.shared.environment import VARIABLES
from dashboard.supervisor.commands import check_server_flags

_LIKE = 0.85  # of 1: how alike two names are if one is taken for a slip of the other


def variables() -> Iterator[str]:
    for name in sorted(os.environ.keys() - VARIABLES.keys()):
        # A name that begins with SLIPWAY_ is refused when the settings are read.
        like = get_close_matches(name.upper(), VARIABLES, 1, _LIKE)
        if like and like[0] not in os.environ:
            yield f"The variable {name} is not used. It looks like {like[0]}: rename it, or remove it."
    if settings.DEBUG and settings.DASHBOARD_HOST not in settings.LOOPBACK:
        yield "SLIPWAY_DEBUG shows stack traces to everybody who reaches this machine: remove it, or set it to 0."
    host = urlsplit(settings.PUBLIC_URL).hostname
    if host and host not in settings.ALLOWED_HOSTS:
        yield f"Pages at SLIPWAY_URL are answered with 400: add {host} to SLIPWAY_ALLOWED_HOSTS."
    check_server_flags()
