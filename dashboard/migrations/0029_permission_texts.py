from django.db import migrations

TEXTS = {
    "upload_data": "Upload formats that are data",
    "upload_code": "Upload formats that can run code, and convert files by code in them",
}


def rename(apps, schema_editor):
    """Django writes the text of a permission only when it makes the row."""
    rows = apps.get_model("auth", "Permission").objects.filter(content_type__app_label="dashboard")
    for codename, text in TEXTS.items():
        rows.filter(codename=codename).update(name=text)


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("dashboard", "0028_tunings"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="model",
            options={
                "ordering": ["name"],
                "permissions": [("operate", "Load, unload, make live, configure"), *TEXTS.items()],
            },
        ),
        migrations.RunPython(rename, migrations.RunPython.noop),
    ]
