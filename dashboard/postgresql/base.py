"""Django's backend for PostgreSQL, with at most `max_sessions` (in OPTIONS) sessions of one process.

Under ASGI each request runs on its own thread, and each thread that queries the database opens a session. Without a bound, 100
simultaneous requests would use all sessions (PostgreSQL's default limit), and leave none for other processes. A thread waits
for a session. If none becomes free in time, the answer to its request says that the database does not answer.
"""

import threading
import weakref
from typing import Any

from django.db import OperationalError
from django.db.backends.postgresql import base

WAIT_S = 10.0


class Sessions:
    """Counts the sessions of the process. Any thread may call the methods."""

    def __init__(self) -> None:
        self._free: threading.BoundedSemaphore | None = None
        self._lock = threading.Lock()

    def take(self, most: int) -> threading.BoundedSemaphore:
        """Wait until the process may open a session. Return the semaphore to release when the session is closed.

        Raises OperationalError if no session becomes free in time.
        """
        with self._lock:
            if self._free is None:
                self._free = threading.BoundedSemaphore(most)
        if not self._free.acquire(timeout=WAIT_S):
            raise OperationalError(f"all {most} sessions of this process are in use (SLIPWAY_DATABASE_SESSIONS)")
        return self._free


SESSIONS = Sessions()


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection to the database."""

    _release: Any = None  # gives back the place of the open session, once

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
        # If a thread ends without closing its session, the session ends when the connection is garbage-collected.
        self._release = weakref.finalize(connection, place.release)
        self._release.atexit = False
        return connection

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]  # the stubs lack it
        finally:
            if self._release is not None:
                self._release()
