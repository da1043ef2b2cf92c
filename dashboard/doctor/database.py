"""Checks of the database, and of what it knows of this machine."""

import time
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from dashboard.doctor.check import NotMade
from dashboard.models import Installation
from dashboard.shared import heartbeat
from dashboard.shared.startup import check_database, one_sentence
from dashboard.supervisor.installation import check_installation, in_one_folder

CLOCK_S = 2.0  # sessions, tokens and leases end by one of the clocks
_BUSY = 0.9  # of the sessions of PostgreSQL
_PROCESSES = 4  # of one machine


def answers() -> Iterator[str]:
    try:
        with one_sentence():
            check_database()
    except CommandError as error:
        hint = "" if connection.vendor == "sqlite" else " Start PostgreSQL, or correct DATABASE_URL"
        yield f"{error}{hint}"


def tables() -> Iterator[str]:
    executor = MigrationExecutor(connection)
    missing = [migration.name for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    if missing:
        count = f"{len(missing)} changes" if missing[1:] else "a change"
        yield f"The database lacks {count} of this release ({missing[-1]}): start manage.py up, or run manage.py migrate"


def installation() -> Iterator[str]:
    if in_one_folder():
        raise NotMade("the database, the keys and all files lie in one folder")
    if not Installation.objects.filter(marked=True).exists():  # the check would write this machine's as the right ones
        raise NotMade("nothing has been started yet")
    check_installation()
    return iter(())


def clock() -> Iterator[str]:
    with _postgresql() as cursor:
        before = time.time()
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        (there,) = cursor.fetchone()
        after = time.time()
    ahead = after - there if there > after else before - there
    if not before - CLOCK_S <= there <= after + CLOCK_S:
        which = "ahead of" if ahead > 0 else "behind"
        yield (
            f"The clock of this machine is {abs(ahead):.0f} s {which} the database's: synchronise both with a time server, for "
            "example with chrony or systemd-timesyncd"
        )


def sessions() -> Iterator[str]:
    """See docs/configuration.md, PostgreSQL and Redis, for the formula."""
    with _postgresql() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int,"
            " (SELECT sum(numbackends)::int FROM pg_stat_database), inet_server_port()"
        )
        most, reserved, used, port = cursor.fetchone()
    if used >= _BUSY * (most - reserved):
        yield (
            f"{used} of the {most - reserved} sessions of PostgreSQL are in use: raise max_connections, or put PgBouncer "
            "between"
        )
    processes = max(_PROCESSES, sum(not one.silent for one in heartbeat.processes()))
    needed = processes * (connection.settings_dict["OPTIONS"]["pool"]["max_size"] + 1) + reserved
    pooled = port is not None and str(port) != str(connection.settings_dict["PORT"] or 5432)
    if most < needed and not pooled:
        yield (
            f"{processes} processes may open {needed - reserved} sessions, and PostgreSQL has {most - reserved} for them: set "
            f"max_connections to {needed} or more, lower SLIPWAY_DATABASE_SESSIONS, or put PgBouncer between"
        )


def _postgresql() -> Any:
    """Return a cursor. Raises NotMade on SQLite."""
    if connection.vendor != "postgresql":
        raise NotMade("the database is a file of this machine")
    return connection.cursor()
