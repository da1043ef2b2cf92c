"""Creates the group of people who only look (access.authorisation.VIEWERS)."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def make(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("auth", "Group").objects.get_or_create(name="viewers")


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0021_releases_are_what_clients_meet"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [migrations.RunPython(make, migrations.RunPython.noop)]
