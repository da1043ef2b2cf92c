"""PostgreSQL as Django's own backend has it, with at most `max_sessions` (in OPTIONS) sessions of one process.

Under ASGI each request runs on a thread of its own, and each thread that asks the database opens a session. Without a bound as
many requests at once as PostgreSQL takes sessions (100) would leave none to the other processes. A thread waits for a session;
when none becomes free in time, its request is told that the database does not answer.
"""

import threading
import weakref
from typing import Any

from django.db import OperationalError
from django.db.backends.postgresql import base

WAIT_S = 10.0


class Sessions:
    """How many sessions the process may have, and has. Any thread."""

    def __init__(self) -> None:
        self._free: threading.BoundedSemaphore | None = None
        self._lock = threading.Lock()

    def take(self, most: int) -> threading.BoundedSemaphore:
        """Wait for a place, which its `release` gives back. OperationalError: none became free."""
        with self._lock:
            if self._free is None:
                self._free = threading.BoundedSemaphore(most)
        if not self._free.acquire(timeout=WAIT_S):
            raise OperationalError(f"all {most} sessions of this process are in use (SLIPWAY_DATABASE_SESSIONS)")
        return self._free


SESSIONS = Sessions()
"""Those of this process."""


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's way to the database."""

    _let_go: Any = None  # gives the place of the open session back, once

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        self._most: int = params.pop("max_sessions")
        return params

    def get_new_connection(self, conn_params: Any) -> Any:
        place = SESSIONS.take(self._most)
        try:
            connection = super().get_new_connection(conn_params)
        except BaseException:
            place.release()
            raise
        # A thread that ends without closing its session loses it when the object goes.
        self._let_go = weakref.finalize(connection, place.release)
        self._let_go.atexit = False
        return connection

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]  # which the stubs leave out
        finally:
            if self._let_go is not None:
                self._let_go()
