from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0026_upload_sources")]

    operations = [
        migrations.AddField(model_name="upload", name="conversion", field=models.JSONField(default=dict)),
        migrations.AlterField(
            model_name="upload",
            name="state",
            field=models.CharField(
                choices=[
                    ("receiving", "Receiving"),
                    ("received", "Received"),
                    ("inspecting", "Inspecting"),
                    ("inspected", "Ready to publish"),
                    ("converting", "Converting"),
                    ("publishing", "Publishing"),
                    ("published", "Published"),
                    ("failed", "Failed"),
                    ("expired", "Expired"),
                    ("cancelled", "Cancelled"),
                ],
                db_index=True,
                default="receiving",
                max_length=16,
            ),
        ),
    ]
