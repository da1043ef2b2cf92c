import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("dashboard", "0027_conversions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Tuning",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("note", models.TextField(blank=True, default="")),
                ("release", models.PositiveIntegerField(default=0)),
                ("config", models.TextField(blank=True, default="")),
                ("steps", models.JSONField(default=dict)),
                ("plan", models.JSONField()),
                ("axes", models.JSONField(default=dict)),
                ("present", models.JSONField(default=dict)),
                ("machine", models.JSONField(default=dict)),
                ("server", models.JSONField(default=dict)),
                ("trials", models.JSONField(default=list)),
                ("chosen", models.JSONField(default=dict)),
                ("gain", models.JSONField(null=True)),
                ("applied", models.JSONField(default=dict)),
                ("created_by_name", models.CharField(blank=True, default="", max_length=150)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="dashboard.job",
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tunings",
                        to="dashboard.version",
                    ),
                ),
            ],
            options={"ordering": ["-created_at", "-pk"]},
        ),
    ]
