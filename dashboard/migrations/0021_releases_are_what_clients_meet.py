"""Turns each older release that changed nothing for clients into a further text of the release before it. The spans in which
it served are added to the spans of that release."""

from datetime import timedelta
from itertools import groupby
from typing import Any

from django.db import migrations

from repository.config.document import Document

_SOON = timedelta(seconds=10)  # a span that begins within this time after another one continues it
_AT_ONCE = 500  # rows of one statement
# The kinds that begin a release whatever the text says: adopted files, a step of a rollout, going back.
_BEGIN = ("adopt", "rollout", "go_back")


def carry_over(apps: Any, schema_editor: Any) -> None:
    for model in apps.get_model("dashboard", "Model").objects.values_list("pk", flat=True).iterator():
        texts = _further_texts(apps, model)
        if texts:
            _carry_model(apps, model, texts)


def _further_texts(apps: Any, model: int) -> dict[int, int]:
    """Return the rows of a model that begin no release, each with the release that it continues."""
    before, begun = None, 0
    found: dict[int, int] = {}
    rows = apps.get_model("dashboard", "Release").objects.filter(model=model).order_by("number")
    for row in rows.only("pk", "text", "versions", "kind").iterator(chunk_size=100):
        same = before is not None and row.kind not in _BEGIN and before.versions == row.versions
        if before is not None and same and Document.read(before.text).same_meaning(Document.read(row.text), row.versions):
            found[row.pk] = begun
        else:
            begun = row.pk
        before = row
    return found


def _carry_model(apps: Any, model: int, texts: dict[int, int]) -> None:
    releases, checks = (apps.get_model("dashboard", name).objects for name in ("Release", "ReleaseCheck"))
    spans = apps.get_model("dashboard", "ReleaseSpan").objects.filter(model=model)
    for text, begun in texts.items():
        releases.filter(pk=text).update(continues=begun)
        spans.filter(release=text).update(release=begun)
        for check in checks.filter(release=text):  # the last check counts
            checks.filter(release=begun, server=check.server_id, started_at__lte=check.started_at).delete()
            if checks.filter(release=begun, server=check.server_id).exists():
                check.delete()
            else:
                checks.filter(pk=check.pk).update(release=begun)
    for _, of_server in groupby(spans.order_by("server", "pk"), key=lambda row: row.server_id):
        _join(spans, list(of_server))


def _join(spans: Any, rows: list[Any]) -> None:
    """Join the spans of one release that follow each other without a gap."""
    gone = []
    for row, after in zip(rows, rows[1:], strict=False):
        if row.release_id == after.release_id and row.ended_at and abs(after.started_at - row.ended_at) <= _SOON:
            after.started_at = row.started_at
            gone.append(row.pk)
    kept = [row for row in rows if row.pk not in set(gone)]
    spans.bulk_update(kept, ["started_at"], batch_size=_AT_ONCE)
    for start in range(0, len(gone), _AT_ONCE):
        spans.filter(pk__in=gone[start : start + _AT_ONCE]).delete()


class Migration(migrations.Migration):
    # This is a separate migration because PostgreSQL cannot alter a table in a transaction that has written its rows.
    dependencies = [
        ("dashboard", "0020_release_continues"),
    ]

    operations = [migrations.RunPython(carry_over, migrations.RunPython.noop)]
