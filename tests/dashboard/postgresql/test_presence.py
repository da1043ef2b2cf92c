"""Whether the database answers, as a process notices it."""

import signal
from threading import Event, Thread

import psycopg
import pytest

from dashboard.postgresql import session
from dashboard.postgresql.presence import Presence, ask
from dashboard.postgresql.session import Session
from tests.support import engines

pytestmark = pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}")


def test_a_session_that_asks_nothing_does_not_hide_that_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    presence, over = Presence(), Event()
    monkeypatch.setattr(session, "PRESENCE", presence)
    monkeypatch.setattr(Session, "statement_limit_s", 30.0)
    with engines.postgres() as database:
        address = engines.new_database(database.port, "presence")
        presence.begin(lambda: ask({"conninfo": address}), lambda: None)
        with Session.connect(address, autocommit=True) as waits, Session.connect(address, autocommit=True) as idle:

            def end_what_never_began() -> None:
                while not over.wait(0.1):
                    idle.rollback()

            beside = Thread(target=end_what_never_began)
            beside.start()
            database.signal(signal.SIGSTOP)
            try:
                with pytest.raises(
                    psycopg.OperationalError, match="the database does not answer"
                ):  # and not: took too long
                    waits.execute("SELECT 1")
            finally:
                over.set()
                beside.join()
                database.signal(signal.SIGCONT)
