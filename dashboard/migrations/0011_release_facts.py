"""Makes releases from older tables: which versions a model served, when, and with which text.

A text was in force as a revision until the next one was made. Each set of versions that was served in that time becomes a
release of its own, so that people can go back to it; releases are numbered in order of time. The newest release has the
versions that its version policy selects now, because a server will serve those. If the versions that were requested last were
not loaded, their release never served; the release before it has served until now.
"""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import migrations
from django.utils import timezone

from repository.config import model_config, version_policy
from repository.config.document import Document
from repository.core.errors import InvalidConfig

_KINDS = (
    ("Published", "publish"),
    ("Made version", "promote"),
    ("Rolled back", "go_back"),
    ("Returned to", "go_back"),
    ("Adopted", "adopt"),
)
_RENAMED = "base_revision", "base_release"
_AT_ONCE = timedelta(seconds=10)  # a text and the versions that it made serve were recorded within this time


@dataclass
class _Told:
    """A release to create. revision: the revision whose text it has."""

    revision: Any
    versions: list[int]
    at: Any
    summary: str
    name: str
    spans: list[list[Any]] = field(default_factory=list)  # [begin, end]; the end is None while it serves


def carry_over(apps: Any, schema_editor: Any) -> None:
    model = apps.get_model("dashboard", "Model")
    numbers = {row.name: _carry_model(apps, row) for row in model.objects.all()}
    upload = apps.get_model("dashboard", "Upload")
    for row in upload.objects.all():
        if any(_RENAMED[0] in stored for stored in (row.proposal, row.publication)):
            known = numbers.get(row.model_name, {})
            row.proposal, row.publication = _renamed(row.proposal, known), _renamed(row.publication, known)
            row.save(update_fields=["proposal", "publication"])


def _carry_model(apps: Any, model: Any) -> dict[int, int]:
    """Create the releases of a model, with their spans; return the number of the first release of each revision, by number."""
    revision_model = apps.get_model("dashboard", "Release")  # the rows of this table are still revisions
    revisions = list(revision_model.objects.filter(model=model).order_by("number"))
    server = apps.get_model("dashboard", "Server").objects.order_by("-bundled", "name").first()
    told = _story(apps, model, revisions)
    if told and model.desired_state != "loaded":
        _stop(told, timezone.now())
    elif told and not _reached(apps, model, server):
        _take_back(told)
    revision_model.objects.filter(model=model).delete()
    for number, one in enumerate(told, start=1):
        text = Document.read(one.revision.text).stamped(number) if one.revision.text else ""
        release = revision_model.objects.create(
            model=model,
            number=number,
            text=text,
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            versions=one.versions,
            kind=next((kind for start, kind in _KINDS if one.summary.startswith(start)), "configure"),
            summary=one.summary,
            created_by=one.revision.created_by if one.summary == one.revision.summary else None,
            created_by_name=one.name,
            created_at=one.at,
        )
        if server is not None:
            span_model = apps.get_model("dashboard", "ReleaseSpan")
            span_model.objects.bulk_create(
                span_model(release=release, model=model, server=server, started_at=begin, ended_at=end)
                for begin, end in one.spans
                if end is None or begin < end
            )
    return {one.revision.number: number for number, one in reversed(list(enumerate(told, start=1)))}


def _story(apps: Any, model: Any, revisions: list[Any]) -> list[_Told]:
    """Return a model's releases, oldest first, derived from its revisions and the records of served versions."""
    served = list(apps.get_model("dashboard", "ServedBefore").objects.filter(model=model).order_by("at", "id"))
    versions = list(apps.get_model("dashboard", "Version").objects.filter(model=model))
    told: list[_Told] = []
    for revision, after in zip(revisions, [*revisions[1:], None], strict=True):
        end = after.created_at if after is not None else None
        rows = [row for row in served if end is None or row.at < end]
        served = served[len(rows) :]
        there = [row.number for row in versions if end is None or row.created_at < end]
        first = rows[0] if rows and rows[0].versions and rows[0].at - revision.created_at <= _AT_ONCE else None
        serving = _stop(told, revision.created_at)
        if first is not None:
            chosen = sorted(first.versions)
        else:
            chosen = told[-1].versions if serving else _chosen(revision.text, there)
        told.append(_Told(revision, chosen, revision.created_at, revision.summary, revision.created_by_name))
        if serving:
            told[-1].spans.append([first.at if first is not None else revision.created_at, None])
        for row in rows:
            _serve(told, row)
    if told:
        chosen = _chosen(told[-1].revision.text, [row.number for row in versions if row.state == "published"])
        if chosen and chosen != told[-1].versions:
            summary = "Carried over: what the version policy chooses"
            told.append(_Told(told[-1].revision, chosen, timezone.now(), summary, ""))
    return told


def _serve(told: list[_Told], row: Any) -> None:
    """Record that these versions, or none, were served from a moment on."""
    versions, newest = sorted(row.versions), told[-1]
    if not versions or versions != newest.versions:
        _stop(told, row.at)
    if versions and versions != newest.versions:
        told.append(_Told(newest.revision, versions, row.at, row.reason, row.actor_name))
    if versions and not (told[-1].spans and told[-1].spans[-1][1] is None):
        told[-1].spans.append([row.at, None])


def _stop(told: list[_Told], at: Any) -> bool:
    """End the span of the release that served last; return whether one served."""
    serving = bool(told) and bool(told[-1].spans) and told[-1].spans[-1][1] is None
    if serving:
        told[-1].spans[-1][1] = at
    return serving


def _reached(apps: Any, model: Any, server: Any) -> bool:
    """Return whether the server had loaded the versions that were requested last, as far as is known."""
    sync = apps.get_model("dashboard", "ModelSync").objects.filter(model=model, server=server).first()
    return sync is None or sync.applied_generation == model.generation


def _take_back(told: list[_Told]) -> None:
    """Remove the span of the last release, which never served, and reopen the span of the release before it."""
    if not told[-1].spans:
        return
    asked, _ = told[-1].spans.pop()
    before = next((one for one in reversed(told) if one.spans), None)
    if before is not None and before.spans[-1][1] is not None and asked - before.spans[-1][1] <= _AT_ONCE:
        before.spans[-1][1] = None


def _chosen(text: str, there: list[int]) -> list[int]:
    try:
        return version_policy.select(model_config.parse(text), there)
    except InvalidConfig:
        return []


def _renamed(stored: dict[str, Any], known: dict[int, int]) -> dict[str, Any]:
    """Return a row of an upload with the release in place of the revision that its text was made from."""
    before, after = _RENAMED
    if before not in stored:
        return stored
    rest = {key: value for key, value in stored.items() if key != before}
    return {**rest, after: known.get(stored[before], stored[before])}


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0010_releases"),
    ]

    operations = [migrations.RunPython(carry_over, migrations.RunPython.noop)]
