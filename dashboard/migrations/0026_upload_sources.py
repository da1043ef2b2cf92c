from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0025_batch_jobs")]

    operations = [
        migrations.AddField("upload", "source", models.JSONField(default=dict)),
        migrations.AddField("uploadfile", "token", models.CharField(blank=True, default="", max_length=200)),
    ]
