"""Renames the server state "live" to "running", because only versions and releases are called live."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def rename(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("dashboard", "ServerState").objects.filter(state="live").update(state="running")


def rename_back(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("dashboard", "ServerState").objects.filter(state="running").update(state="live")


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0012_release_history")]

    operations = [
        migrations.AlterField(
            model_name="serverstate",
            name="state",
            field=models.CharField(
                choices=[
                    ("starting", "Starting"),
                    ("running", "Running, loading models"),
                    ("ready", "Ready"),
                    ("down", "Down"),
                    ("stopped", "Stopped"),
                ],
                default="stopped",
                max_length=16,
            ),
        ),
        migrations.RunPython(rename, rename_back),
    ]
