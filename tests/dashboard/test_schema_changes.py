"""Migrations expand the tables, or say which release they contract them for; docs/scale.md has the order.

An earlier program that still runs reads the columns that it knows, and its INSERT names only those.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from dashboard.shared.release import release_key
from repository.core.server_version import VERSION

SINCE = "0038"  # earlier releases refuse every migration that they do not know
EXPANDS = (
    *(migrations.CreateModel, migrations.AddIndex, migrations.RemoveIndex, migrations.RemoveConstraint),
    *(migrations.AlterModelOptions, migrations.AlterModelManagers),
)
CONTRACTS = (migrations.RemoveField, migrations.DeleteModel, migrations.RenameField, migrations.RenameModel)


def fault(operation: Operation, before: ProjectState, after: ProjectState) -> str:
    """Return what an earlier program would not stand; "?" if a person must say it; "" if there is nothing."""
    if isinstance(operation, EXPANDS):
        return ""
    if isinstance(operation, CONTRACTS):
        return "takes away what earlier programs read"
    if isinstance(operation, migrations.AddField):
        field = operation.field
        filled = field.null or field.many_to_many or field.has_db_default()
        return "" if filled else "adds a column without null=True or db_default, which earlier programs do not fill"
    if isinstance(operation, migrations.AlterField):
        old, new = (
            state.apps.get_model("dashboard", operation.model_name)._meta.get_field(operation.name)
            for state in (before, after)
        )
        if old.null and not new.null and not new.has_db_default():
            return "forbids the NULL that earlier programs write"
        editor: Any = connection.schema_editor()
        return "?" if editor._field_should_be_altered(old, new) else ""
    return "?"


def faults(migration: Any, state: ProjectState) -> Iterator[str]:
    """Yield what is wrong with a migration. state: the tables before it."""
    minimum, expands = getattr(migration, "minimum_release", ""), getattr(migration, "expands", "")
    for operation in migration.operations:
        after = state.clone()
        operation.state_forwards("dashboard", after)
        found = fault(operation, state, after)
        if found == "?" and not (expands or minimum):
            yield f"{operation.describe()}: say in `expands` why earlier programs stand it, or set `minimum_release`"
        elif found not in ("", "?") and not minimum:
            yield f"{operation.describe()}: it {found}; do it in a later release, with `minimum_release`"
        state = after
    if minimum and release_key(minimum) >= release_key(VERSION):
        yield f"minimum_release is {minimum}, but programs of an earlier release than {VERSION} must be able to run"


def test_no_migration_takes_away_what_the_last_release_reads() -> None:
    loader = MigrationLoader(None)
    found = [
        f"{name}: {text}"
        for app, name in loader.graph.forwards_plan(*loader.graph.leaf_nodes("dashboard"))
        if app == "dashboard" and name[:4] >= SINCE
        for text in faults(loader.disk_migrations[app, name], loader.project_state((app, name), at_end=False))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("operations", "marks", "expected"),
    [
        ([migrations.RemoveField("job", "step")], {}, "takes away"),
        ([migrations.RemoveField("job", "step")], {"expands": "nobody reads it"}, "takes away"),
        ([migrations.RemoveField("job", "step")], {"minimum_release": "0.0.9"}, ""),
        ([migrations.RemoveField("job", "step")], {"minimum_release": VERSION}, "must be able to run"),
        ([migrations.RenameField("job", "step", "stage")], {}, "takes away"),
        (
            [migrations.AddField("job", "colour", models.TextField(default="red"))],
            {},
            "without null=True or db_default",
        ),
        ([migrations.AddField("job", "colour", models.TextField(db_default="red"))], {}, ""),
        ([migrations.AlterField("job", "started_at", models.DateTimeField())], {}, "forbids the NULL"),
        ([migrations.AlterField("job", "step", models.CharField(max_length=5))], {}, "say in `expands`"),
        ([migrations.AlterField("job", "step", models.CharField(max_length=900))], {"expands": "It is longer."}, ""),
        ([migrations.RunPython(migrations.RunPython.noop)], {}, "say in `expands`"),
    ],
)
def test_a_migration_is_judged_by_what_an_earlier_program_stands(
    operations: list[Operation], marks: dict[str, str], expected: str
) -> None:
    loader = MigrationLoader(None)
    migration = type("Migration", (migrations.Migration,), {"operations": operations, **marks})("9000", "dashboard")
    found = list(faults(migration, loader.project_state(loader.graph.leaf_nodes("dashboard"))))
    assert len(found) == bool(expected), found
    assert expected in "".join(found)


def test_both_programs_have_the_version_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
