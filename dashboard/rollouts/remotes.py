"""Which other servers a rollout may name: the addresses in the file of SLIPWAY_TRAFFIC_REMOTES, never the headers in it."""

import json

from django.conf import settings


def remotes_listed() -> list[str]:
    """Return the addresses that the server may call, [] without a file, and for one that it would refuse."""
    if settings.TRAFFIC_REMOTES is None:
        return []
    try:
        rows = json.loads(settings.TRAFFIC_REMOTES.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    return list(rows) if isinstance(rows, dict) else []
