"""Carries change marks and heartbeats between machines that have one PostgreSQL and data folders of their own.

Readers look only at files (shared.changes, shared.heartbeat). A thread of each process raises the marks of the tables that the
process changed, after their commit. The processes of a machine take turns to read the other machines' marks and heartbeats, and
to tell their own: whoever comes first when the last turn is PAUSE_S old. So a process that is stopped, or a database that is
frozen, holds up nobody. Statements stand alone, so that a pooler in transaction mode may be between.
"""

import atexit
import hashlib
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.db import Error, ProgrammingError, connection

from dashboard.shared import changes, heartbeat

logger = logging.getLogger(__name__)

PAUSE_S = 0.5
# A transaction's time is that of its begin, so marks are read again for this time.
_AGAIN_S = 30.0
# After this time without the database, the ages of others' heartbeats say nothing: they could not tell them.
_AWAY_S = 5.0

_RAISE = """
INSERT INTO dashboard_tablemark AS mark (machine, "table", at) SELECT %s, unnest(%s::text[]), clock_timestamp()
ON CONFLICT (machine, "table") DO UPDATE SET at = EXCLUDED.at
"""
_MARKS = """
SELECT machine || ' ' || "table", at::text FROM dashboard_tablemark
WHERE machine <> %s AND at > now() - make_interval(secs => %s)
"""
_TELL = """
WITH given AS (SELECT * FROM unnest(%(names)s::text[], %(pids)s::bigint[], %(since)s::bigint[], %(ages)s::float8[],
    %(ended)s::boolean[]) AS given (name, process, since, age, ended)),
gone AS (DELETE FROM dashboard_heartbeat WHERE CASE WHEN machine = %(machine)s
    THEN (name, process, since) NOT IN (SELECT name, process, since FROM given)
    ELSE seen_at < now() - make_interval(secs => %(forgotten)s) END),
stale AS (DELETE FROM dashboard_tablemark WHERE at < now() - interval '1 day')
INSERT INTO dashboard_heartbeat (machine, name, host, process, since, beat_at, seen_at, ended)
SELECT %(machine)s, name, %(host)s, process, since, now() - make_interval(secs => age), now(), ended FROM given
ON CONFLICT (machine, name, process, since)
DO UPDATE SET beat_at = EXCLUDED.beat_at, seen_at = EXCLUDED.seen_at, ended = EXCLUDED.ended
"""
_BEATS = """
SELECT name, host, process, since, extract(epoch FROM now() - beat_at)::float8, ended FROM dashboard_heartbeat
WHERE machine <> %s ORDER BY id
"""

_changed: set[str] = set()  # tables whose marks are to be raised
_wake = threading.Event()
_begun = threading.Lock()


def begin() -> None:
    """Start this process's thread. With SQLite there is one machine, and nothing to do."""
    if connection.vendor == "postgresql" and _begun.acquire(blocking=False):
        threading.Thread(target=_run, name="relay", daemon=True).start()
        atexit.register(_end)


def tell(table: str) -> None:
    """Let other machines know soon that a table changed."""
    begin()
    _changed.add(table)
    _wake.set()


def _run() -> None:
    said = ""
    while True:
        _wake.wait(PAUSE_S)
        _wake.clear()
        try:
            _raise_marks()
            if _takes_turn():
                _exchange()
            said = ""
        except ProgrammingError as error:
            logger.debug("the tables are missing, because the database is being migrated: %s", error)
        except (Error, OSError) as error:
            if str(error) != said:
                logger.warning("other machines are not heard: %s", error)
            said = str(error)
        finally:
            connection.close()
        time.sleep(0.1)  # for what is changed meanwhile one statement is enough


def _raise_marks() -> None:
    tables = _changed.copy()
    if tables:
        # A table that changes from now on is raised again.
        _changed.difference_update(tables)
        try:
            _execute(_RAISE, [_machine(), sorted(tables)])
        except Error:
            _changed.update(tables)
            raise


def _end() -> None:
    """Raise what is left, and forget this process, because the last one of its machine has nobody to tell that it ended."""
    heartbeat.forget()
    with suppress(Error, FileNotFoundError):  # the data folder may be gone
        _raise_marks()
        _execute("DELETE FROM dashboard_heartbeat WHERE machine = %s AND process = %s", [_machine(), os.getpid()])


def _takes_turn() -> bool:
    path = settings.HEARTBEAT_DIR / "turn"
    with suppress(FileNotFoundError):
        if 0 <= time.time() - path.stat().st_mtime < PAUSE_S:
            return False
    path.touch()
    return True


def _exchange() -> None:
    """Give tables that changed elsewhere a mark here, and every HEARTBEAT_S tell and read heartbeats."""
    kept, now = heartbeat.processes_of_others(), time.time()
    gap = abs(now - kept.get("at", 0.0))
    seen = kept.get("marks", {})
    marks = dict(_execute(_MARKS, [_machine(), gap + _AGAIN_S]))
    for key in {key for key, at in marks.items() if seen.get(key) != at}:
        changes.announce_here(key.partition(" ")[2])
    found = {**kept, "at": now, "marks": marks, "since": now if gap > _AWAY_S else kept.get("since", now)}
    if gap > _AWAY_S or abs(now - kept.get("told", 0.0)) >= heartbeat.HEARTBEAT_S:
        own = heartbeat.processes_here()
        given = {
            "names": [one.name for one in own],
            "pids": [one.pid for one in own],
            "since": [one.since for one in own],
            "ages": [max(0.0, one.age) for one in own],
            "ended": [one.ended for one in own],
        }
        host = heartbeat.HOST
        _execute(_TELL, {**given, "machine": _machine(), "host": host, "forgotten": heartbeat.FORGOTTEN_AFTER_S})
        heard_s = max(0.0, now - found["since"])
        beats = [[*row[:4], min(row[4], heard_s), row[5]] for row in _execute(_BEATS, [_machine()])]
        found |= {"told": now, "processes": beats}
    heartbeat.processes_of_others(found)


def _execute(sql: str, parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def _machine() -> str:
    """Return the key of this data folder, which differs from another machine's and, for a container, from another's."""
    folder = os.stat(settings.DATA_DIR)
    text = f"{heartbeat.HOST} {settings.DATA_DIR} {folder.st_dev} {folder.st_ino}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
