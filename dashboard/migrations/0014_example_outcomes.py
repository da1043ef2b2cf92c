"""Examples store their tensors' signature in place of a description, and the outcome of their last run as golden requests."""

from typing import Any

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def describe(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for example in apps.get_model("dashboard", "Example").objects.iterator(chunk_size=1):
        sent, expected = example.request.get("inputs", []), (example.expected or {}).get("outputs", [])
        example.signature = {"inputs": _rows(sent), "outputs": _rows(expected)}
        example.save(update_fields=["signature"])


def _rows(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: tensor[key] for key in ("name", "datatype", "shape")} for tensor in tensors]


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0013_server_running")]

    operations = [
        migrations.AddField("example", "signature", models.JSONField(default=dict)),
        migrations.AddField("example", "outcome", models.JSONField(null=True)),
        migrations.RunPython(describe, migrations.RunPython.noop),
        migrations.RemoveField("example", "inputs"),
    ]
