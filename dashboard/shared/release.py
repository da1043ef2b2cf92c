"""Whether this program may use a database whose tables a newer release has changed.

A migration expands the tables: programs of earlier releases go on with them. Or it contracts them, and says so by
`minimum_release`: the first release that does not need any more what it takes away. Whoever migrates writes this down in the
table SchemaChange, so that an earlier program, which does not have the migration, can read it there.
`tests/dashboard/test_schema_changes.py` checks the migrations.
"""

from typing import Any

from django.db import connection
from django.db.migrations.loader import MigrationLoader

from dashboard.shared.exceptions import Conflict, Invalid
from repository.core.server_version import VERSION

_TABLE = "dashboard_schemachange"
_OTHERWISE = "or put back the copy of data folder and database from before the upgrade"


def release_key(release: str) -> tuple[int, ...]:
    """Return what orders releases: the numbers of "1.2.3". Raises ValueError for another text."""
    return tuple(map(int, release.split(".")))


def check_release() -> str:
    """Return the newer release that has changed the tables of the database in a way that this one can use; "" if none has.

    Raises Invalid, with both releases, if this one would misread the tables.
    """
    loader = MigrationLoader(connection)
    unknown = sorted(
        name
        for app, name in set(loader.applied_migrations) - set(loader.disk_migrations)
        if app in loader.migrated_apps
    )
    if not unknown:
        return ""
    changes = _changes()
    if not all(name in changes for name in unknown):
        name = next(name for name in reversed(unknown) if name not in changes)
        raise Invalid(
            f"the database was brought up to date by a newer release of Slipway (this is {VERSION}, which does not know "
            f"'{name}'): start that release, {_OTHERWISE}"
        )
    needed = max((changes[name][1] for name in unknown), key=_order)
    release = max((changes[name][0] for name in unknown), key=_order)
    if _order(needed) > _order(VERSION):
        raise Invalid(
            f"release {release} of Slipway has taken away tables or columns that this one, {VERSION}, needs: start release "
            f"{needed} or a newer one, {_OTHERWISE}"
        )
    return release


def check_references() -> None:
    """Raise Conflict if rows of a newer release refer to a row that this transaction has deleted.

    Call it before files are deleted too. PostgreSQL deletes such rows itself (`postgresql.references`).
    """
    if connection.vendor == "sqlite" and check_release():
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA foreign_key_check")
            if cursor.fetchone():
                raise Conflict("a newer release of Slipway keeps something of it: start that release to delete it")


def record_changes(**_: Any) -> None:
    """Write down what each migration of this program demands of others. It is called before and after migrations are applied.

    Before, so that no earlier program starts on tables that are just contracting; after, for the one that makes the table.
    """
    if _TABLE not in connection.introspection.table_names():
        return
    migrations = MigrationLoader(None).disk_migrations
    known = _changes()
    new = [
        [name, VERSION, getattr(migration, "minimum_release", "")]
        for (app, name), migration in migrations.items()
        if app == "dashboard" and name not in known
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {_TABLE} (migration, release, minimum_release) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            new,
        )


def _changes() -> dict[str, tuple[str, str]]:
    """Return the release that brought each migration, and the first release that may run after it; "" for any."""
    with connection.cursor() as cursor:
        if _TABLE not in connection.introspection.table_names(cursor):
            return {}
        cursor.execute(f"SELECT migration, release, minimum_release FROM {_TABLE}")
        return {row[0]: (row[1], row[2]) for row in cursor.fetchall()}


def _order(release: str) -> tuple[int, ...]:
    try:
        return release_key(release)
    except ValueError:  # "" is before all
        return ()
