"""Reads batch jobs, for those who may see their rows, and the tensors of the models that answer."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import orjson
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet

from dashboard.access.authorisation import CLIENT_DATA, Actor, Right
from dashboard.catalog.selectors import model_get
from dashboard.catalog.traits import traits_of
from dashboard.configuration.signatures import served_signature
from dashboard.models import BatchJob, Version
from dashboard.models.version import Signature
from dashboard.releases.selectors import current_document, serving_release, wanted_release
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Conflict, NotFound


@dataclass(frozen=True, slots=True)
class Answering:
    """The version of a model that answers a batch job.

    version: its number, as text. most_rows: of one request, 0 without batches. priority: the lowest level, 0 for no levels.
    """

    version: str
    signature: Signature
    most_rows: int
    priority: int


def batch_jobs(actor: Actor, model_name: str = "") -> QuerySet[BatchJob]:
    """Return the batch jobs whose rows the actor may see: their own, or all with the right to see the data of clients."""
    rows = BatchJob.objects.select_related("job").prefetch_related("files")
    if not actor.may(CLIENT_DATA):
        rows = rows.filter(Q(user=actor.user) if actor.user is not None else Q(pk=None))
    return rows.filter(model_name=model_name) if model_name else rows


def batch_get(pk: UUID | str, actor: Actor) -> BatchJob:
    """Return a batch job. Raises NotFound if there is none of that id that the actor may see."""
    try:
        return batch_jobs(actor).get(pk=pk)
    except (BatchJob.DoesNotExist, ValidationError):
        raise NotFound("there is no such batch job; it may have been removed") from None


def reasons_path(batch: BatchJob) -> Path:
    return batch.folder / "reasons.json"


def refusal_reasons(batch: BatchJob) -> list[str]:
    """Return some different reasons why rows were refused. After the end the result has the reason of each row instead."""
    if batch.finished_at is not None or batch.job_id is None:
        return []
    try:
        found: list[str] = orjson.loads(reasons_path(batch).read_bytes())
    except FileNotFoundError:
        return []
    return found


def answering(model_name: str, version: str = "") -> Answering:
    """Return the version that answers; with `version` "" the one that clients get now.

    Raises NotFound if there is no such model or version. Raises Conflict if the version is archived, or the model cannot answer
    rows one by one.
    """
    model = model_get(model_name)
    document = current_document(model)
    release = serving_release(model) or wanted_release(model)
    number = document.aliases.get(version, version) if version else (release.answers if release is not None else 0)
    row: Version | None = model.versions.filter(number=number).first() if str(number).isdecimal() else None
    if row is None:
        raise NotFound(
            f"model '{model_name}' has no version '{version}'"
            if version
            else f"model '{model_name}' has no version that could answer"
        )
    if row.state != VersionState.PUBLISHED:
        raise Conflict(f"version {row.number} of '{model_name}' is {row.state}: restore it, or choose another version")
    traits = traits_of(document, row.streams)
    if traits.decoupled or traits.sequence:
        kind = "streams its answers" if traits.decoupled else "answers sequences of requests"
        raise Conflict(f"model '{model_name}' {kind}: a batch job needs one answer for each row")
    config = document.message
    levels = config.dynamic_batching.priority_levels
    return Answering(
        version=str(row.number),
        signature=served_signature(document, row),
        most_rows=config.max_batch_size,
        priority=levels if levels > 1 else 0,
    )


def may_read_sources(actor: Actor) -> bool:
    """Return whether the actor may read the folders and buckets that an administrator has allowed."""
    return actor.may(Right.OPERATE)
