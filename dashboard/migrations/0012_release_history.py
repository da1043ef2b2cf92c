from django.db import migrations


class Migration(migrations.Migration):
    """Removes the older table of served versions, because ReleaseSpan holds them from now on."""

    dependencies = [
        ("dashboard", "0011_release_facts"),
    ]

    operations = [
        migrations.DeleteModel(name="ServedBefore"),
    ]
