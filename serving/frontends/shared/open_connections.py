"""The open connections of this process. If file descriptors run short, the connections that are idle longest are closed.

So new connections, such as those of probes, are always answered."""

import asyncio
import os
import resource
import time
from typing import Protocol

_RESERVED_PART, _LEAST_RESERVED, _MOST_RESERVED = 8, 32, 256  # descriptors kept for files, models and processes
_LOOK_FROM = 4  # descriptors are counted only if connections have more than a fourth of the limit
_LOOK_S = 1e-5  # the pause between two counts of all descriptors, for each open connection
_BUSY_S = 0.25  # shortest pause before the next count if no connection could be closed


class OpenConnection(Protocol):
    def idle_s(self) -> float | None:
        """Return how many seconds the connection has waited for its client, or None if it has a request under way."""

    def close_idle(self) -> None:
        """Close the connection, with the protocol's notice to the client, such as GOAWAY."""


_open: dict[OpenConnection, None] = {}  # in the order in which they were opened


class _Look:
    """The monotonic time at which all descriptors are counted next; -inf if no count is planned."""

    due = float("-inf")


def opened(connection: OpenConnection) -> None:
    """Register a new connection. If descriptors run short, idle connections are closed after a short pause, in which other new
    connections are registered."""
    _open[connection] = None
    if _LOOK_FROM * len(_open) > _limit():
        _look_soon()


def _look_soon(least_s: float = 0.0) -> None:
    now = time.monotonic()
    if now > _Look.due:
        delay = max(least_s, len(_open) * _LOOK_S)
        _Look.due = now + delay
        asyncio.get_running_loop().call_later(delay, _look)


def _look() -> None:
    _Look.due = float("-inf")
    try:
        taken = len(os.listdir("/proc/self/fd"))
    except OSError:  # no descriptor is left to list the descriptors
        taken = _limit()
    over = taken - descriptors_for_clients()
    if over > 0 and _open:
        # Count again later, because waiting connections will be accepted, or busy connections become idle.
        _look_soon(0.0 if _close_idlest(over) else _BUSY_S)


def closed(connection: OpenConnection) -> None:
    _open.pop(connection, None)


def descriptors_for_clients() -> int:
    """Return how many descriptors may be open before idle connections are closed. The rest of the limit is reserved for files,
    models and processes."""
    limit = _limit()
    return limit - min(_MOST_RESERVED, max(_LEAST_RESERVED, limit // _RESERVED_PART))


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _close_idlest(count: int) -> bool:
    """Close at most `count` idle connections, the longest idle first. Return whether any connection was idle."""
    found = [(idle, one) for one in _open if (idle := one.idle_s()) is not None]
    # Whole seconds, because some protocols count no others: a new connection of another one would be idle longer than theirs.
    found.sort(key=lambda pair: -int(pair[0]))  # a stable sort: of two equally idle connections, the older is first
    for _, one in found[:count]:
        _open.pop(one, None)
        one.close_idle()
    return bool(found)
