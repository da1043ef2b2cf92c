"""A program goes on with tables that a newer release has expanded, and refuses tables that it would misread."""

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from dashboard.access.authorisation import SYSTEM
from dashboard.catalog.services import model_delete
from dashboard.models import Model, SchemaChange
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.release import check_release, record_changes
from repository.core.server_version import VERSION

pytestmark = pytest.mark.django_db


def applied(name: str, **change: str) -> None:
    MigrationRecorder(connection).record_applied("dashboard", name)
    if change:
        SchemaChange.objects.create(migration=name, **change)


def test_a_database_of_this_release_and_its_migrations_are_written_down() -> None:
    assert check_release() == ""
    assert SchemaChange.objects.get(migration="0043_upgrade").release == VERSION
    SchemaChange.objects.all().delete()  # the process was killed between the migration and this
    record_changes()
    record_changes()
    assert SchemaChange.objects.filter(migration="0043_upgrade").count() == 1


def test_tables_that_were_only_expanded_or_contracted_for_earlier_releases_are_used() -> None:
    applied("9000_expands", release="98.10.0")
    applied("9001_contracts", release="98.9.0", minimum_release=VERSION)
    assert check_release() == "98.10.0"


def test_tables_that_lack_what_this_release_needs_are_refused_with_both_releases() -> None:
    applied("9000_contracts", release="98.2.0", minimum_release="98.1.0")
    applied("9001_expands", release="98.10.0")
    with pytest.raises(
        Invalid, match=f"release 98.10.0 of Slipway .* {VERSION}, needs: start release 98.1.0 or a newer"
    ):
        check_release()


def test_a_migration_of_which_nothing_is_known_is_refused() -> None:
    applied("9000_expands", release="98.0.0")
    applied("9001_unknown")
    with pytest.raises(Invalid, match=rf"newer release .*this is {VERSION}, which does not know '9001_unknown'"):
        check_release()


def test_a_model_of_which_a_newer_release_keeps_something_is_not_half_deleted() -> None:
    applied("9000_expands", release="98.0.0")
    model = Model.objects.create(name="kept")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE later (model_id bigint REFERENCES dashboard_model (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        cursor.execute("INSERT INTO later VALUES (%s)", [model.pk])
    with pytest.raises(Conflict, match="newer release of Slipway keeps something"):
        model_delete(model=model, actor=SYSTEM, confirm_name="kept")
    assert Model.objects.filter(name="kept").exists()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE later")
