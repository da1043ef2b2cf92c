"""Which other servers a rollout may name: the addresses in the file of SLIPWAY_TRAFFIC_REMOTES, never the headers in it."""

import json
from urllib.parse import urlsplit

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


def is_listed(url: str) -> bool:
    """Return whether an address lies below a listed one. The server reads both more strictly, and has the last word."""
    try:
        origin, path = _parts(url)
        return any(origin == listed and path.startswith(below) for listed, below in map(_parts, remotes_listed()))
    except ValueError:
        return False


def _parts(url: str) -> tuple[tuple[str, str, int], str]:
    """Return scheme, host and port, and the path with a slash last. ValueError: it is no URL."""
    parts = urlsplit(url)
    usual = 443 if parts.scheme == "https" else 80
    return (parts.scheme, parts.hostname or "", parts.port or usual), f"{parts.path.rstrip('/')}/"
