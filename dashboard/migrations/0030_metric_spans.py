"""The history was kept in spans of 1, 10 and 300 s; now it is kept in spans of 1, 10, 60 and 600 s."""

from itertools import groupby

from django.db import migrations

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
        migrations.RunPython(merge_spans, migrations.RunPython.noop),
    ]
