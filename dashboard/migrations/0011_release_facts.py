"""Carries over what was known before there were releases: a revision gets the versions that were served with it, and when.

A revision ruled from its making until the next one was made; what was served at the end of that time are its versions. Where
nothing was recorded for it, they are those that its version policy chose of the versions that there were.
"""

from typing import Any

from django.db import migrations
from django.utils import timezone

from repository.config import model_config, version_policy
from repository.core.errors import InvalidConfig

_KINDS = (
    ("Published", "publish"),
    ("Made version", "promote"),
    ("Rolled back", "go_back"),
    ("Returned to", "go_back"),
    ("Adopted", "adopt"),
)
_RENAMED = "base_revision", "base_release"


def carry_over(apps: Any, schema_editor: Any) -> None:
    model = apps.get_model("dashboard", "Model")
    for row in model.objects.all():
        _carry_model(apps, row)
    upload = apps.get_model("dashboard", "Upload")
    for row in upload.objects.all():
        if any(_RENAMED[0] in stored for stored in (row.proposal, row.publication)):
            row.proposal, row.publication = _renamed(row.proposal), _renamed(row.publication)
            row.save(update_fields=["proposal", "publication"])


def _carry_model(apps: Any, model: Any) -> None:
    releases = list(apps.get_model("dashboard", "Release").objects.filter(model=model).order_by("number"))
    served = list(apps.get_model("dashboard", "ServedBefore").objects.filter(model=model).order_by("at", "id"))
    versions = list(apps.get_model("dashboard", "Version").objects.filter(model=model))
    ends = [release.created_at for release in releases[1:]] + [None]
    for release, end in zip(releases, ends, strict=True):
        before = [row for row in served if end is None or row.at < end]
        last = next((row.versions for row in reversed(before) if row.versions), None)
        there = [row.number for row in versions if end is None or row.created_at < end]
        release.versions = sorted(last if last is not None else _chosen(release.text, there))
        release.kind = next((kind for start, kind in _KINDS if release.summary.startswith(start)), "configure")
        release.save(update_fields=["versions", "kind"])
    _carry_spans(apps, model, releases, ends, served)


def _carry_spans(apps: Any, model: Any, releases: list[Any], ends: list[Any], served: list[Any]) -> None:
    """Each row of before, cut where a revision came in between, is a span of the release that ruled and has its versions."""
    server = apps.get_model("dashboard", "Server").objects.order_by("-bundled", "name").first()
    span_model = apps.get_model("dashboard", "ReleaseSpan")
    if server is None:
        return
    stops = [row.at for row in served[1:]] + [None]
    spans: list[Any] = []
    for release, end in zip(releases, ends, strict=True):
        for row, stop in zip(served, stops, strict=True):
            begin = max(row.at, release.created_at)
            last = min((at for at in (stop, end) if at is not None), default=None)
            if not row.versions or sorted(row.versions) != release.versions or (last is not None and last <= begin):
                continue
            if last is None and model.desired_state != "loaded":
                last = max(begin, timezone.now())
            spans.append(
                span_model(release=release, model=model, server=server, started_at=begin, ended_at=last)
            )
    span_model.objects.bulk_create(spans)


def _chosen(text: str, there: list[int]) -> list[int]:
    try:
        return version_policy.select(model_config.parse(text), there)
    except InvalidConfig:
        return []


def _renamed(stored: dict[str, Any]) -> dict[str, Any]:
    before, after = _RENAMED
    return {after if key == before else key: value for key, value in stored.items()}


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0010_releases"),
    ]

    operations = [migrations.RunPython(carry_over, migrations.RunPython.noop)]
