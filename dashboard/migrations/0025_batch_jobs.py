import uuid

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("dashboard", "0024_measurements"),
    ]

    operations = [
        migrations.CreateModel(
            name="BatchJob",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("user_name", models.CharField(blank=True, default="", max_length=150)),
                ("model_name", models.CharField(db_index=True, max_length=200)),
                ("format", models.CharField(max_length=16)),
                ("source", models.CharField(blank=True, default="", max_length=1000)),
                ("plan", models.JSONField(default=dict)),
                ("rows", models.PositiveBigIntegerField(null=True)),
                ("rows_done", models.PositiveBigIntegerField(default=0)),
                ("error_rows", models.PositiveBigIntegerField(default=0)),
                ("progress_attempt", models.IntegerField(default=0)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("touched_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="batch_jobs",
                        to="dashboard.job",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"ordering": ["-created_at"]},
        ),
        migrations.CreateModel(
            name="BatchFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("name", models.CharField(max_length=500)),
                ("size", models.PositiveBigIntegerField()),
                ("received", models.PositiveBigIntegerField(default=0)),
                ("rows", models.PositiveBigIntegerField(null=True)),
                ("result_bytes", models.PositiveBigIntegerField(null=True)),
                (
                    "batch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="files", to="dashboard.batchjob"
                    ),
                ),
            ],
            options={
                "ordering": ["number"],
                "constraints": [
                    models.UniqueConstraint(fields=("batch", "number"), name="batch_file_number_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchPart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("offset", models.PositiveBigIntegerField()),
                ("length", models.PositiveBigIntegerField()),
                ("rows", models.PositiveIntegerField()),
                ("errors", models.PositiveIntegerField(default=0)),
                ("done", models.BooleanField(default=False)),
                (
                    "file",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="parts", to="dashboard.batchfile"
                    ),
                ),
            ],
            options={
                "ordering": ["file", "number"],
                "constraints": [
                    models.UniqueConstraint(fields=("file", "number"), name="batch_part_number_once"),
                ],
            },
        ),
    ]
