"""Moves versions into the archive and back, by a job, because a move between two disks takes minutes.

While its files are being moved, a version's row is `moving`, so that nobody makes the version live or moves it again. An
interrupted job leaves the files complete in one place, and the state of the row names the place (`catalog.version_states`).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.catalog import version_states
from dashboard.configuration.needs import refuse_unmet, restore_needs
from dashboard.jobs.context import JobContext, undone_by
from dashboard.jobs.kinds import Work
from dashboard.jobs.progress import JobProgress
from dashboard.jobs.runner import job_run_here
from dashboard.jobs.services import UNFINISHED, job_create
from dashboard.models import Job, Model, Version
from dashboard.releases.bucket import bucket_point, bucket_point_soon, bucket_transaction
from dashboard.releases.selectors import current_document, newest_release, protected_versions
from dashboard.releases.storage import forget_version, managed_repository, remember_version
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Conflict, Forbidden, WrongState
from dashboard.shared.repository_errors import repository_errors
from repository.core.errors import RepositoryError
from repository.core.layout import ModelRepository
from repository.files import publish, storage
from repository.files.progress import Progress
from repository.files.storage import Manifest


@repository_errors()
def version_archive(*, version: Version, actor: Actor) -> Job:
    """Archive a version: its files move from the repository to the archive folder.

    Raises Conflict if something needs the version (releases.selectors.protected_versions).
    """
    require(actor, Right.OPERATE)
    repository = managed_repository()
    at_once = storage.same_disk(repository.root, repository.archive) or _small(version)
    with transaction.atomic():
        model = Model.locked(version.model_id)
        _refuse_protected(model, version)
        version_states.archive(version)
        job = _job("archive", "Archive", version, actor, announce=not at_once)
    return _start_job(job, version, archive_run if at_once else None)


@repository_errors()
def version_restore(*, version: Version, actor: Actor) -> Job:
    """Restore an archived version. Raises Conflict if restoring it would also make it live."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        model = Model.locked(version.model_id)
        version_states.restore(version)
        _refuse_live(model, version)
        archived = managed_repository().archived_version_dir(model.name, version.number)
        _refuse_code(version, model, archived, actor)
        job = _job("restore", "Restore", version, actor, announce=not _small(version))
    return _start_job(job, version, restore_run if _small(version) else None)


def archive_run(context: JobContext) -> dict[str, Any]:
    """Run the job `archive`, whose params are {"version": id}."""
    version = _version(context)
    if version.state != VersionState.ARCHIVED:
        with _on_its_way(version) as repository:
            _archive(version, repository, context)
    return _result(version)


def restore_run(context: JobContext) -> dict[str, Any]:
    """Run the job `restore`, whose params are {"version": id}."""
    version = _version(context)
    if version.state != VersionState.PUBLISHED:
        with _on_its_way(version) as repository:
            _restore(version, repository, context)
    return _result(version)


def move_abandoned(job: Job) -> None:
    """Set the version's state by the place of its files, after the job was ended while no worker ran it."""
    for version in Version.objects.filter(pk=job.params["version"]):
        _set_state_by_files(version)


@repository_errors()
def moves_recover() -> list[str]:
    """Set the state of versions that a job has left `moving`, because it lost the database when it had moved the files, or
    before it could take the move back. Return one sentence for each."""
    done = []
    for version in Version.objects.filter(state=VersionState.MOVING).select_related("model"):
        with transaction.atomic():
            model = Model.locked(version.model_id)
            jobs = Job.objects.filter(kind__in=("archive", "restore"), params={"version": version.pk})
            left = not jobs.filter(state__in=UNFINISHED).exists()
        if left:
            _set_state_by_files(version)
            version.refresh_from_db()
            done.append(f"Version {version.number} of {model.name} was left moving; it is {version.state} now.")
    return done


def _archive(version: Version, repository: ModelRepository, context: JobContext) -> None:
    place: dict[str, Any] = {"name": version.model.name, "version": version.number}
    publish.archive_version(repository, **place, progress=JobProgress(context))
    try:
        with bucket_transaction():
            model = Model.locked(version.model_id)
            version_states.archived(version)
            forget_version(model, version.number)
            _record(version, model, context.job, "version.archive", "Archived")
            bucket_point(model)
    except RepositoryError:  # the bucket does not take it
        publish.restore_version(repository, **place)
        raise


def _restore(version: Version, repository: ModelRepository, context: JobContext) -> None:
    progress = JobProgress(context)
    place: dict[str, Any] = {"name": version.model.name, "version": version.number}
    archived = repository.archived_version_dir(**place)
    # The manifest is read first: once the files are in place, no long work that could be cancelled may follow.
    manifest = _hashed(archived if archived.is_dir() else repository.version_dir(**place), progress)
    publish.restore_version(repository, **place, progress=progress)
    try:
        _record_restored(version, manifest, context.job)
    except WrongState:  # `move_abandoned` has set the state meanwhile, by the place of the files
        raise
    except (Conflict, Forbidden, RepositoryError):
        publish.archive_version(repository, **place, progress=progress)
        raise


def _version(context: JobContext) -> Version:
    return Version.objects.get(pk=context.params["version"])


def _result(version: Version) -> dict[str, Any]:
    """Return the job's result, also for a move whose earlier attempt died after its last transaction."""
    return {"model": version.model.name, "version": version.number}


def _small(version: Version) -> bool:
    return version.size_bytes <= settings.AT_ONCE_BYTES


def _job(kind: str, verb: str, version: Version, actor: Actor, *, announce: bool) -> Job:
    return job_create(
        kind=kind,
        params={"version": version.pk},
        actor=actor,
        title=f"{verb} version {version.number} of {version.model.name}",
        model=version.model,
        announce=announce,
    )


def _start_job(job: Job, version: Version, at_once: Work | None) -> Job:
    if at_once is not None:
        job_run_here(job=job, work=at_once)
    version.refresh_from_db()
    return job


@contextlib.contextmanager
def _on_its_way(version: Version) -> Iterator[ModelRepository]:
    """Set the version's state by the place of its files if the block raises."""
    if version.state != VersionState.MOVING:
        raise Conflict(f"version {version.number} of '{version.model.name}' is not being moved any more")
    with undone_by(lambda error: _set_state_by_files(version)), repository_errors():
        yield managed_repository()


def _set_state_by_files(version: Version) -> None:
    """After an interrupted move, set the version's state by the place of its files. If the move has ended, do nothing."""
    there = managed_repository().has_version(version.model.name, version.number)
    with contextlib.suppress(WrongState), transaction.atomic():
        model = Model.locked(version.model_id)
        if there:
            version_states.published(version)
        else:
            version_states.archived(version)
            forget_version(model, version.number)
        bucket_point_soon(model)


def _hashed(folder: Path, progress: Progress) -> Manifest:
    progress.plan(storage.tree_size(folder))
    progress.step("Hashing")
    return storage.hash_tree(folder, progress)


def _record_restored(version: Version, manifest: Manifest, job: Job) -> Model:
    with bucket_transaction():
        model = Model.locked(version.model_id)
        _refuse_live(model, version)
        _refuse_code(version, model, managed_repository().version_dir(model.name, version.number), _mover(job))
        version_states.published(version)
        remember_version(model, version.number, manifest)
        _record(version, model, job, "version.restore", "Restored")
        bucket_point(model)
    return model


def _refuse_code(version: Version, model: Model, folder: Path, actor: Actor) -> None:
    needs = restore_needs(version=version, document=current_document(model), folder=folder)
    refuse_unmet(needs, actor.rights())


def _mover(job: Job) -> Actor:
    return Actor(user=job.created_by) if job.created_by else SYSTEM


def _refuse_protected(model: Model, version: Version) -> None:
    why = protected_versions(model).get(version.number)
    if why is not None:
        raise Conflict(why)


def _refuse_live(model: Model, version: Version) -> None:
    """Raise Conflict if restoring the version would add it to the versions that the newest release serves."""
    newest = newest_release(model)
    there = [*model.published_numbers(), version.number]
    if newest is not None and newest.versions and version.number in newest.document.versions(there):
        raise Conflict(
            f"the version policy of '{model.name}' would serve version {version.number} immediately; "
            "make a version live first, so that the policy names it"
        )


def _record(version: Version, model: Model, job: Job, action: str, verb: str) -> None:
    actor = _mover(job)
    summary = f"{verb} version {version.number} of {model.name}"
    audit_record(actor=actor, action=action, model=model, summary=summary, after={"version": version.number})
