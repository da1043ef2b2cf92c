"""Change marks: one for each table. Every process of the dashboard sees them, with any database.

The marks are small files in the data folder. After each commit that changed a table, the table gets a new mark. A wrapper
around every database connection finds the tables that a statement writes and that a part of a page reads. If a process is
killed between its commit and the mark, the change has no mark. Therefore readers of marks also poll the tables. With
PostgreSQL, postgresql.relay carries marks between machines.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db import transaction

from dashboard.shared.statements import wrap_statements

logger = logging.getLogger(__name__)

# The first table gets a row each second, which the live feed sends to browsers; the second only counts attempts to sign in.
UNMARKED = frozenset({"dashboard_metricsample", "dashboard_signincount"})
HEARTBEATS = "heartbeats"  # the name of the mark for the files of shared.heartbeat
KEPT_S = 5.0  # the longest that a result is kept, because a change may lack its mark
_ALL = "all"  # the mark that changes whenever another mark changes
_MARK_BYTES = 8
_OWN = r'"((?:dashboard|auth)_\w+)"'
_WRITES = re.compile(rf"(INSERT INTO|INSERT OR IGNORE INTO|UPDATE|DELETE FROM) {_OWN}")
_READS = re.compile(rf"(?:FROM|JOIN) {_OWN}")

Result = TypeVar("Result")

_reading: ContextVar[set[str] | None] = ContextVar("reading", default=None)
# Tells other machines that a table changed.
tell_others: Callable[[str], None] | None = None
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def watch_connections() -> None:
    """Inspect every statement that this process's database connections execute from now on."""
    wrap_statements(_note)


@contextmanager
def quietly() -> Iterator[None]:
    """Write no marks for the block's writes. Use it for records of polls and heartbeats, which pages do not show."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


@contextmanager
def tables_read() -> Iterator[set[str]]:
    """Yield a set that holds every table that the block read, after the block has ended."""
    found: set[str] = set()
    token = _reading.set(found)
    try:
        yield found
    finally:
        _reading.reset(token)


def note_read(name: str) -> None:
    """Record `name` as read by the present tables_read block, like a table."""
    if (reading := _reading.get()) is not None:
        reading.add(name)


def kept_while_unchanged(read: Callable[[], Result]) -> Callable[[], Result]:
    """Decorate a selector: this process caches its result until a table that it read changes, at most for KEPT_S.

    Callers must not change the result. Inside a transaction, whose own writes others do not see, the cache is not used.
    """
    kept: _Kept[Result] | None = None

    @wraps(read)
    def selector() -> Result:
        nonlocal kept
        if transaction.get_connection().in_atomic_block:
            return read()
        found = kept
        if found is None or not found.fresh():
            now, before = time.monotonic(), marks()
            with tables_read() as tables:
                result = read()
            kept = found = _Kept(now, {table: before.get(table, "") for table in tables}, result)
        for table in found.marks:
            note_read(table)
        return found.result

    return selector


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Result]):
    at: float
    marks: dict[str, str]
    result: Result

    def fresh(self) -> bool:
        young = time.monotonic() - self.at < KEPT_S
        return young and all(_read(_path(table)) == mark for table, mark in self.marks.items())


def mark() -> str:
    """Return the mark of all tables together: another text after each change of any table."""
    return _read(_path(_ALL))


def marks() -> dict[str, str]:
    """Return the mark of each table that has one: a table that never changed has no mark."""
    return {path.name: _read(path) for path in settings.CHANGES_DIR.iterdir() if path.name != _ALL}


def announce(table: str) -> None:
    """Give a table a new mark on every machine. If the folder cannot be written, the mark is lost, but the commit is kept."""
    announce_here(table)
    if tell_others is not None:
        tell_others(table)


def announce_here(table: str) -> None:
    """Give a table a new mark on this machine."""
    try:
        for name in (table, _ALL):
            descriptor = os.open(_path(name), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, os.urandom(_MARK_BYTES), 0)
            finally:
                os.close(descriptor)
    except OSError as error:
        logger.warning("open pages do not learn that %s changed: %s", table, error.strerror)


def _path(name: str) -> Path:
    return settings.CHANGES_DIR / name


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes().hex()
    return ""


def _note(execute: Callable[..., Any], sql: str, params: object, many: bool, context: dict[str, Any]) -> Any:
    """Execute a statement, and record the tables that it reads and writes."""
    if (reading := _reading.get()) is not None:
        reading.update(_READS.findall(sql))
    result = execute(sql, params, many, context)
    written = _WRITES.match(sql)
    if written is None or written[2] in UNMARKED or _quiet.get():
        return result
    # SQLite counts the rows of an INSERT that returns columns only when they are fetched.
    if written[1].startswith("INSERT") or context["cursor"].rowcount:
        transaction.on_commit(partial(announce, written[2]), using=context["connection"].alias)
    return result
