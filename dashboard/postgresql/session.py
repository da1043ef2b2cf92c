"""A session of PostgreSQL that waits for an answer no longer than it must."""

import select
from collections.abc import Generator
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, TypeVar

import psycopg
from psycopg.waiting import Ready

from dashboard.postgresql.presence import PRESENCE, SILENT_S

Result = TypeVar("Result")
_LOOK_S = 0.1


class Session(psycopg.Connection[Any]):
    """A connection whose statements end when the database is away, or after the limit.

    The limit is kept here and not by the server's `statement_timeout`, which is a state of the session: a pooler in transaction
    mode refuses it, or hands it to others.
    """

    statement_limit_s: ClassVar[float | None] = None  # 0: none; None: as in the settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.opened_at = monotonic()

    def wait(self, gen: Generator[Any, Any, Result], interval: float = _LOOK_S, timeout: float | None = None) -> Result:
        """Run a generator of psycopg to its end. Raises OperationalError if the database is away."""
        return super().wait(self._watched(gen), min(interval, _LOOK_S), timeout)

    def has_ended(self) -> bool:
        """Return whether the server has ended this idle session. Nothing is sent to find out."""
        try:
            # A server that ends a session says why before it closes the connection.
            while not self.closed and select.select([self.pgconn.socket], [], [], 0)[0]:
                self.pgconn.consume_input()
        except (psycopg.Error, OSError, ValueError):
            self.close()
        return self.closed

    def _watched(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """Pass on what the generator waits for. psycopg sends 0 after each interval in which nothing came."""
        began, cancelled_at, answered = monotonic(), 0.0, 0
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if not ready:
                    cancelled_at = self._look(began, cancelled_at)
                answered |= ready & Ready.R
                waits_for = gen.send(ready)
        except StopIteration as end:
            # Without a transaction, a rollback or a commit ends without a word from the database.
            if answered:
                PRESENCE.heard()
            result: Result = end.value
            return result

    def _look(self, began: float, cancelled_at: float) -> float:
        """Cancel the statement at its limit, and return when it was cancelled, or 0.0. Raises OperationalError to end it."""
        try:
            PRESENCE.look(began)
            if cancelled_at and monotonic() - cancelled_at > SILENT_S:
                raise psycopg.OperationalError("a statement took too long, and could not be cancelled")
        except psycopg.Error:
            self.close()  # it is in the middle of a statement
            raise
        if cancelled_at or not 0 < (self.statement_limit_s or 0) < monotonic() - began:
            return cancelled_at
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=SILENT_S)
        return monotonic()
