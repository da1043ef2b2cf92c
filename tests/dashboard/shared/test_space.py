"""What was deleted from the database's file is given back to the disk."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.backends.sqlite3.base import DatabaseWrapper

from dashboard.settings import DATABASES
from dashboard.shared import space

pytestmark = pytest.mark.django_db

OPTIONS: Any = DATABASES["default"]["OPTIONS"]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabaseWrapper]:
    """A file of its own, opened as the dashboard opens its."""
    made = DatabaseWrapper({**connection.settings_dict, "NAME": tmp_path / "db.sqlite3", "OPTIONS": OPTIONS})
    monkeypatch.setattr(space, "connection", made)
    yield made
    made.close()


def filled_and_emptied(database: DatabaseWrapper) -> int:
    """Write 32 MB, and delete them; return how large the file is."""
    with database.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS names (name TEXT)")
        cursor.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 32000) "
            "INSERT INTO names SELECT hex(zeroblob(500)) FROM n"
        )
        cursor.execute("DELETE FROM names")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(database.settings_dict["NAME"]).stat().st_size


def size(database: DatabaseWrapper) -> int:
    return Path(database.settings_dict["NAME"]).stat().st_size


def test_a_new_file_shrinks(database: DatabaseWrapper) -> None:
    space.enable_incremental_vacuum()
    before = filled_and_emptied(database)
    assert before > 30 << 20
    assert space.give_space_back() == before - size(database)
    assert size(database) < 6 << 20
    assert space.give_space_back() == 0


def test_a_file_of_an_earlier_release_shrinks_after_a_start(database: DatabaseWrapper) -> None:
    with sqlite3.connect(database.settings_dict["NAME"]) as earlier:
        earlier.execute("PRAGMA journal_mode=WAL")
        earlier.execute("CREATE TABLE kept (name TEXT)")
        earlier.execute("INSERT INTO kept VALUES ('here')")
    earlier.close()
    assert filled_and_emptied(database) > 30 << 20
    assert space.give_space_back() == 0
    space.enable_incremental_vacuum()
    assert filled_and_emptied(database) > 30 << 20
    assert space.give_space_back() > 0
    assert size(database) < 6 << 20
    with database.cursor() as cursor:
        cursor.execute("SELECT name FROM kept")
        assert cursor.fetchall() == [("here",)]
