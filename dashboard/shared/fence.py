"""The fence around the work of the watcher that leads: what it does after its lease has ended is refused.

number      rises with each leader. Every control call carries it (servers.client), and a server refuses a number below the
            highest that it has seen.
until       the end of the lease by this process's clock. A watcher that was stopped for longer writes nothing to the database
            when it wakes up.

The fence holds for the tasks and threads that start within `fenced_by`.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.db import OperationalError

from dashboard.shared.statements import wrap_statements

FENCE_HEADER = "slipway-fence"
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)


class LeaseEnded(OperationalError):
    """Another watcher may lead by now."""


@dataclass(slots=True)
class Fence:
    """See the module. until: by `time.monotonic`, which goes on while the process is stopped."""

    number: int
    until: float


_fence: ContextVar[Fence | None] = ContextVar("fence", default=None)


@contextmanager
def fenced_by(fence: Fence) -> Iterator[None]:
    token = _fence.set(fence)
    try:
        yield
    finally:
        _fence.reset(token)


def fence_headers() -> dict[str, str]:
    """Return the header of a control call; none outside of a fence, as in calls that a person causes."""
    fence = _fence.get()
    return {} if fence is None else {FENCE_HEADER: str(fence.number)}


def refuse_late_writes() -> None:
    """Let every later connection of this process raise LeaseEnded for a write within a fence whose time is over."""
    wrap_statements(_checked)


def _checked(execute: Callable[..., Any], sql: str, params: object, many: bool, context: dict[str, Any]) -> Any:
    fence = _fence.get()
    if fence is not None and time.monotonic() >= fence.until and _WRITES.match(sql):
        raise LeaseEnded(f"the lease with number {fence.number} has ended: another watcher may lead")
    return execute(sql, params, many, context)
