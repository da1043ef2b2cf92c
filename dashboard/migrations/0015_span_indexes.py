"""Replaces the indexes of spans: one that begins with the server would have nearly all spans under one key."""

from django.db import migrations, models
from django.db.models import CASCADE


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0014_example_outcomes")]

    operations = [
        migrations.RemoveIndex("releasespan", "dashboard_r_model_i_79212f_idx"),
        migrations.AlterField(
            "releasespan", "model", models.ForeignKey("dashboard.model", CASCADE, related_name="spans", db_index=False)
        ),
        migrations.AlterField(
            "releasespan",
            "release",
            models.ForeignKey("dashboard.release", CASCADE, related_name="spans", db_index=False),
        ),
        migrations.AlterField(
            "releasespan", "server", models.ForeignKey("dashboard.server", CASCADE, related_name="+", db_index=False)
        ),
        migrations.AddIndex(
            "releasespan", models.Index(fields=["model", "server", "-started_at"], name="release_span_of_model")
        ),
        migrations.AddIndex("releasespan", models.Index(fields=["release", "server", "started_at"], name="release_span_of_release")),
        migrations.AddIndex(
            "releasespan", models.Index(fields=["started_at"], name="release_span_of_time")
        ),
    ]
