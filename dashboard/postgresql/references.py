"""Lets PostgreSQL itself clear up behind a deleted row.

Django deletes the rows that refer to a deleted one, or clears their reference. An earlier release does not know the tables and
columns of a newer one, and could not delete a model to which their rows refer. So what is new gets ON DELETE.
"""

from collections.abc import Iterator
from typing import Any

from django.db import connection, models, transaction
from django.db.migrations import AddField, CreateModel
from django.db.migrations.loader import MigrationLoader

SINCE = "0042"  # what earlier migrations made, every release knows that shares the tables with another
_RULES: dict[Any, str] = {models.CASCADE: "CASCADE", models.SET_NULL: "SET NULL"}
_FIND = """
SELECT quote_ident(conname), pg_get_constraintdef(found.oid) FROM pg_constraint AS found
JOIN pg_attribute AS col ON col.attrelid = conrelid AND conkey = ARRAY[col.attnum]
WHERE contype = 'f' AND confdeltype = 'a' AND conrelid = to_regclass(%s) AND attname = %s
"""


def delete_in_database(**_: Any) -> None:
    """Give each reference that is newer than SINCE the rule that Django follows for it. It is called after migrations."""
    for table, column, rule in _references():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_FIND, [table, column])
            for name, definition in cursor.fetchall():
                new = definition.replace(" DEFERRABLE", f" ON DELETE {rule} DEFERRABLE")
                cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {new}")


def _references() -> Iterator[tuple[str, str, str]]:
    """Yield table, column and rule."""
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        if app != "dashboard" or name < SINCE:
            continue
        for operation in migration.operations:
            if isinstance(operation, CreateModel):
                model, fields = operation.name, operation.fields
            elif isinstance(operation, AddField):
                model, fields = operation.model_name, [(operation.name, operation.field)]
            else:
                continue
            for field_name, field in fields:
                rule = isinstance(field, models.ForeignKey) and _RULES.get(field.remote_field.on_delete)
                if rule:
                    yield f"dashboard_{model.lower()}", field.db_column or f"{field_name}_id", rule
