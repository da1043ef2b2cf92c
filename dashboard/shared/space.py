"""Returns the space of deleted rows in a SQLite file to the disk. Other databases do not need this."""

from django.db import connection

_INCREMENTAL = 2  # of PRAGMA auto_vacuum
KEPT_PAGES = 1024  # 4 MiB of free pages stay in the file, for the next writes
_PAGES_AT_ONCE = 256  # other processes write between two steps


def enable_incremental_vacuum() -> None:
    """Rewrite a file that lacks the table for incremental_vacuum. This happens once, while nothing else uses the file.

    For a new file this takes no time. The pragma is not set when connections open, because it would wait for writers.

    Raises DatabaseError if the disk has no room for a second copy, or another process uses the file. The next start tries
    again.
    """
    if connection.vendor != "sqlite" or _pragma("auto_vacuum") == _INCREMENTAL:
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
        cursor.execute("VACUUM")


def give_space_back() -> int:
    """Cut free pages off the end of the file, a few at a time; return the number of bytes."""
    if connection.vendor != "sqlite" or _pragma("auto_vacuum") != _INCREMENTAL:
        return 0
    before, free = _pragma("page_count"), _pragma("freelist_count")
    while free > KEPT_PAGES:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA incremental_vacuum({min(_PAGES_AT_ONCE, free - KEPT_PAGES)})")
            cursor.fetchall()  # each row frees a page
        left, free = free, _pragma("freelist_count")
        if free >= left:
            break
    if not (cut := before - _pragma("page_count")):
        return 0
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")  # the file shrinks only at a checkpoint
    return cut * _pragma("page_size")


def _pragma(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA {name}")
        return int(cursor.fetchone()[0])
