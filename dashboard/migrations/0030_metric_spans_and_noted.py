"""The history was kept in spans of 1, 10 and 300 s; now it is kept in spans of 1, 10, 60 and 600 s. Requests that stood out."""

from itertools import groupby

import django.db.models.deletion
from django.db import migrations, models

from dashboard.metrics.samples import decode, encode, merge_samples

BATCH = 500


def merge_spans(apps, schema_editor):
    """Make the new spans from rows of the former ones, so that the charts of the last month stay whole."""
    rows = apps.get_model("dashboard", "MetricSample").objects
    for finer, coarser in ((10, 60), (300, 600)):
        merge(rows, finer, coarser)
    rows.filter(resolution=300).delete()


def merge(rows, finer, coarser):
    order = ("server_id", "model_name", "version", "at")
    found = rows.filter(resolution=finer).order_by(*order).values_list(*order, "data").iterator()
    made = []
    for (server, name, version, at), spans in groupby(found, key=lambda row: (*row[:3], row[3] - row[3] % coarser)):
        data = encode(merge_samples(decode(row[4]) for row in spans))
        made.append(rows.model(server_id=server, model_name=name, version=version, resolution=coarser, at=at, data=data))
        if len(made) == BATCH:
            rows.bulk_create(made, ignore_conflicts=True)
            made.clear()
    rows.bulk_create(made, ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0029_permission_texts"),
    ]

    operations = [
        migrations.CreateModel(
            name='FailureCount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model_name', models.CharField(max_length=200)),
                ('version', models.PositiveBigIntegerField()),
                ('at', models.PositiveBigIntegerField()),
                ('cause', models.CharField(max_length=500)),
                ('code', models.CharField(max_length=32)),
                ('reason', models.CharField(max_length=32)),
                ('count', models.PositiveBigIntegerField()),
                ('first', models.FloatField()),
                ('last', models.FloatField()),
                ('key', models.CharField(max_length=80)),
                ('server', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
            options={
                'indexes': [models.Index(fields=['model_name', 'at'], name='failure_count_of_model'), models.Index(fields=['at'], name='failure_count_at')],
                'constraints': [models.UniqueConstraint(fields=('server', 'key'), name='failure_count_once')],
            },
        ),
        migrations.CreateModel(
            name='NotedRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model_name', models.CharField(max_length=200)),
                ('version', models.PositiveBigIntegerField()),
                ('failed', models.BooleanField()),
                ('at', models.PositiveBigIntegerField()),
                ('duration_us', models.PositiveBigIntegerField()),
                ('details', models.JSONField()),
                ('key', models.CharField(max_length=80)),
                ('server', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
            options={
                'indexes': [models.Index(fields=['model_name', 'failed', 'at'], name='noted_request_of_model'), models.Index(fields=['at'], name='noted_request_at')],
                'constraints': [models.UniqueConstraint(fields=('server', 'key'), name='noted_request_once')],
            },
        ),
        migrations.RunPython(merge_spans, migrations.RunPython.noop),
    ]
