from django.db import migrations


class Migration(migrations.Migration):
    """What was served when is told by ReleaseSpan from now on."""

    dependencies = [
        ("dashboard", "0011_release_facts"),
    ]

    operations = [
        migrations.DeleteModel(name="ServedBefore"),
    ]
