"""Rows of the database as blocks of compressed JSON lines, which any of the databases takes.

A block holds the rows of a fixed range of keys. So the blocks of rows that have not changed are the same in the next backup.
"""

import gzip
import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, time
from typing import Any
from uuid import UUID

from django.apps import apps
from django.apps.registry import Apps
from django.core.management.color import no_style
from django.db import connection, models, transaction

from dashboard.backups.manifest import Table
from dashboard.shared.exceptions import Invalid

BLOCK_ROWS = 1000
_AT_ONCE = 200  # rows that are read or written by one statement
# People sign in again; heartbeats and marks are of processes that ended; the identity is that of the original.
_LEFT_OUT = {"sessions.Session", "dashboard.Heartbeat", "dashboard.TableMark", "dashboard.Installation"}


def kept(registry: Apps = apps) -> dict[str, type[models.Model]]:
    """Return label -> model of the tables that a backup holds."""
    found = {model._meta.label: model for model in registry.get_models(include_auto_created=True)}
    return {
        label: model
        for label, model in found.items()
        if model._meta.managed and not model._meta.proxy and label not in _LEFT_OUT
    }


@contextmanager
def snapshot() -> Iterator[None]:
    """Let the block read the database as it is at one moment. Writers do not wait."""
    if connection.vendor != "sqlite":
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
        return
    connection.ensure_connection()
    sqlite: Any = connection
    before, sqlite.transaction_mode = sqlite.transaction_mode, "DEFERRED"  # the others take the lock of writers
    try:
        with transaction.atomic():
            yield
    finally:
        sqlite.transaction_mode = before


def dump(model: type[models.Model], keep: Callable[[bytes], str]) -> Table:
    """Return the rows of a table. keep: takes a block, and returns its SHA-256."""
    columns = [field.attname for field in model._meta.concrete_fields]
    rows, blocks = 0, []
    for lines in _blocks(model, columns):
        rows += len(lines)
        blocks.append(keep(gzip.compress("".join(lines).encode(), 6, mtime=0)))
    return Table(columns, rows, blocks)


def _blocks(model: type[models.Model], columns: list[str]) -> Iterator[list[str]]:
    found = model._base_manager.order_by("pk")
    first = found.values_list("pk", flat=True).first()
    while first is not None:
        if isinstance(first, int):
            end = (first // BLOCK_ROWS + 1) * BLOCK_ROWS
            rows, rest = found.filter(pk__gte=first, pk__lt=end), found.filter(pk__gte=end)
        else:
            last = list(found.filter(pk__gte=first).values_list("pk", flat=True)[:BLOCK_ROWS])[-1]
            rows, rest = found.filter(pk__gte=first, pk__lte=last), found.filter(pk__gt=last)
        yield [
            json.dumps(row, default=_plain, separators=(",", ":")) + "\n"
            for row in rows.values_list(*columns).iterator(chunk_size=_AT_ONCE)
        ]
        first = rest.values_list("pk", flat=True).first()


def _plain(value: object) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a backup cannot hold a {type(value).__name__}")


def replace(tables: dict[str, type[models.Model]], rows: Callable[[str], Iterable[tuple[list[str], bytes]]]) -> None:
    """Replace the rows of all tables, within the caller's transaction. rows: returns columns and block, for a table's label.

    Raises Invalid if a block does not fit its table.
    """
    for model in tables.values():
        model._base_manager.all()._raw_delete(connection.alias)
    for label, model in tables.items():
        fields = {field.attname: field for field in model._meta.concrete_fields}
        for columns, block in rows(label):
            try:
                lines = gzip.decompress(block).splitlines()
                for first in range(0, len(lines), _AT_ONCE):
                    part = lines[first : first + _AT_ONCE]
                    values = (zip(columns, json.loads(line), strict=True) for line in part)
                    model._base_manager.bulk_create(
                        [model(**{name: fields[name].to_python(value) for name, value in row}) for row in values]
                    )
            except (ValueError, KeyError, OSError, EOFError, zlib.error):
                raise Invalid(f"the rows of {label} in this backup do not fit their table") from None
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), list(tables.values())):
            cursor.execute(statement)
