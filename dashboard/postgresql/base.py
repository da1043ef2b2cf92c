"""Django's backend for PostgreSQL, with psycopg's pool of sessions (`pool` in OPTIONS).

Under ASGI each request runs on its own thread, and each thread that queries the database needs a session. The pool gives a
process at most `max_size` of them. A thread waits for one. If none becomes free in time, or the database is away, the answer to
its request says that the database does not answer.
"""

import weakref
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, ClassVar

from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool, PoolTimeout

from dashboard.postgresql.presence import PRESENCE, SUSPECT_S, ask
from dashboard.postgresql.session import Session

_LOOK_S = 2.0  # a thread that waits for a session looks so often whether the database is away


class Sessions(ConnectionPool[Session]):
    """The sessions of the process."""

    _renewed_at = 0.0

    def getconn(self, timeout: float | None = None) -> Session:
        """Return a session that the server has not ended. Raises OperationalError after the pool's timeout."""
        began, patience_s = monotonic(), SUSPECT_S
        while True:
            try:
                session = super().getconn(patience_s)
            except PoolTimeout:
                if monotonic() - began > self.timeout:
                    raise
                PRESENCE.look(began)
                patience_s = _LOOK_S
                continue
            if not session.has_ended():
                return session
            self._renew(session)

    def _renew(self, ended: Session) -> None:
        """Replace a session that ended while nobody used it, and all idle ones: the server was probably restarted."""
        self.putconn(ended)
        if ended.opened_at > self._renewed_at:
            self._renewed_at = monotonic()
            self.drain()


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's use of the database."""

    _connection_pools: ClassVar[dict[str, Sessions]] = {}  # Django's name
    _left: "SimpleQueue[Session]" = SimpleQueue()  # sessions of threads that ended without giving them back
    _leave: Any = None  # puts the session there

    @property
    def pool(self) -> Sessions | None:
        if self.alias == NO_DB_ALIAS:
            return None
        if self.alias not in self._connection_pools:
            parameters = {**self.get_connection_params(), "autocommit": True}
            pool = Sessions(
                kwargs=parameters,
                connection_class=Session,
                open=False,
                configure=self._configure_connection,  # type: ignore[attr-defined]  # the stubs lack it
                **self.settings_dict["OPTIONS"]["pool"],
            )
            self._connection_pools.setdefault(self.alias, pool)  # two threads may come here at once
            PRESENCE.begin(lambda: ask(parameters), self.throw_pool_away)
        return self._connection_pools[self.alias]

    @staticmethod
    def keeps_waiting() -> bool:
        """Return whether a statement of this process waits for its answer."""
        return PRESENCE.keeps_waiting()

    def throw_pool_away(self) -> None:
        """Let those who wait for a session fail, and let the next one make a new pool."""
        pool = self._connection_pools.pop(self.alias, None)
        if pool is not None:
            pool.close(timeout=0)

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        limit = params.pop("statement_limit_s", 0)
        if Session.statement_limit_s is None:
            Session.statement_limit_s = limit
        return params

    def get_new_connection(self, conn_params: Any) -> Any:
        PRESENCE.check()
        while True:
            try:
                left = self._left.get_nowait()
                pool: Any = left._pool
                pool.putconn(left)
            except Empty:
                break
        connection = super().get_new_connection(conn_params)
        # Garbage collection may come at any moment, also while this thread holds the pool's lock: so nothing else is done then.
        self._leave = weakref.finalize(self, self._left.put, connection)
        self._leave.atexit = False
        return connection

    def _close(self) -> None:
        if self._leave is not None:
            self._leave.detach()
        super()._close()  # type: ignore[misc]  # the stubs lack it
