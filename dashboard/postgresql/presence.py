"""Whether the database answers, as far as this process knows.

A database whose machine is stopped, or whose disk hangs, keeps its connections open and sends nothing. TCP notices nothing,
because the kernel still acknowledges, and the limits that the server enforces are stopped with it. A slow statement looks the
same. So when something has waited for SUSPECT_S, a thread asks the database with a session of its own. Without any answer
within SILENT_S the database is away: everything that waits for it fails, and new work fails immediately, until it answers the
thread again.
"""

import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import psycopg

SUSPECT_S = 0.3
LATELY_S = 1.0
SILENT_S = 2  # libpq treats a shorter time to connect as 2 s
RETRY_S = 0.25
# A thread that waits for a statement looks more often than this.
_LOOKS_S = 1.0


class Presence:
    """What this process knows of the database. Any thread may call the methods."""

    def __init__(self) -> None:
        self.reason = ""  # why the database is away; "" if it is not
        self._ask: Callable[[], None] | None = None
        self._gone: Callable[[], None] = lambda: None
        self._heard_at, self._looked_at = float("-inf"), 0.0
        self._lock = threading.Lock()
        self._asking = False  # whether the thread that asks runs

    def begin(self, ask: Callable[[], None], gone: Callable[[], None]) -> None:
        """Set what asks the database, and raises psycopg.Error without an answer in SILENT_S, and what is called when it is
        away."""
        self._ask, self._gone = ask, gone

    def heard(self) -> None:
        """Note that the database has just answered."""
        self._heard_at = monotonic()

    def answered_lately(self) -> bool:
        """Return whether the database has answered this process in the last LATELY_S."""
        return not self.reason and monotonic() - self._heard_at < LATELY_S

    def keeps_waiting(self) -> bool:
        """Return whether a statement of this process waits for the database's answer."""
        return monotonic() - self._looked_at < _LOOKS_S

    def check(self) -> None:
        """Raise psycopg.OperationalError if the database is away."""
        if self.reason:
            raise psycopg.OperationalError(f"the database does not answer: {self.reason}")

    def look(self, since: float) -> None:
        """Call this from time to time while something waits. since: the monotonic time at which the wait began.

        Raises psycopg.OperationalError if the database is away.
        """
        self.check()
        now = self._looked_at = monotonic()
        if now - max(since, self._heard_at) < SUSPECT_S or self._ask is None:
            return
        with self._lock:
            begins, self._asking = not self._asking, True
        if begins:
            threading.Thread(target=self._find_out, args=(self._ask,), name="database", daemon=True).start()

    def _find_out(self, ask: Callable[[], None]) -> None:
        """Ask until the database answers this thread or, before it is found to be away, any other."""
        begun = monotonic()
        try:
            while (error := _fault(ask)) and (self.reason or self._heard_at < begun):
                if not self.reason and monotonic() - begun >= SILENT_S:
                    self.reason = error
                    self._gone()
                sleep(RETRY_S)
            self.heard()
        finally:
            self.reason, self._asking = "", False


def _fault(ask: Callable[[], None]) -> str:
    """Return why the database did not answer, or "" if it did."""
    try:
        ask()
    except psycopg.Error as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return ""


class _Question(psycopg.Connection[Any]):
    """A connection that waits SILENT_S for the answer to a statement."""

    def wait(self, gen: Any, interval: float = RETRY_S, timeout: float | None = SILENT_S) -> Any:
        return super().wait(gen, interval, timeout)


def ask(parameters: dict[str, Any]) -> None:
    """Open a session, and let it answer. Raises psycopg.Error if it does not. parameters: those of psycopg.connect."""
    session = _Question.connect(**{**parameters, "connect_timeout": SILENT_S, "autocommit": True})
    try:
        session.execute("SELECT 1")
    finally:
        session.close()


PRESENCE = Presence()
