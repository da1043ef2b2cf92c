"""The job `tuned_canary`: begins a canary of the chosen configuration.

A rollout moves requests from one version to another. So the job publishes the files of the tuned version again, as a new
version with settings of its own, and begins a rollout to it. Each act is kept in the tuning when it is done.
"""

from pathlib import Path
from typing import Any, cast

from django.db import transaction

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.jobs.context import JobContext, JobSuperseded
from dashboard.models import Job, Model, Tuning, Upload
from dashboard.releases.selectors import current_document
from dashboard.releases.storage import managed_repository
from dashboard.rollouts.services import rollout_start
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Conflict, Forbidden
from dashboard.tuning.changes import changed_document, own_settings, refuse_unchanged
from dashboard.uploads import states
from dashboard.uploads.inspection import inspection_run
from dashboard.uploads.publication import publication_run, upload_publish
from dashboard.uploads.services import upload_complete, upload_create, upload_receive_file
from repository.config import version_settings
from repository.core.layout import OVERLAY_FILE
from repository.files import storage

_BEGIN_AGAIN = (UploadState.RECEIVING, UploadState.CANCELLED, UploadState.FAILED, UploadState.EXPIRED)


class _Part(JobContext):
    """The part of a job that works on one upload."""

    def __init__(self, whole: JobContext, upload: Upload) -> None:
        super().__init__(whole.job)
        self.params = {"upload": str(upload.pk)}

    def progress(self, percent: float, step: str = "") -> None:
        """Write the step, and leave the progress to the whole job."""
        self._write(**({"step": step[:200]} if step else {}))
        self.check_cancelled()


def canary_run(context: JobContext) -> dict[str, object]:
    """Run the job `tuned_canary`, whose params are {"tuning": id, "override": text}. It continues after its last kept act."""
    tuning = Tuning.objects.select_related("version__model").filter(pk=context.params["tuning"]).first()
    if tuning is None:
        raise Conflict("the tuning was deleted meanwhile")
    refuse_unchanged(tuning)
    model, actor = tuning.version.model, _actor(context.job)
    if "rollout" not in tuning.applied:
        number = _published(context, tuning, actor)
        context.begin_step(70, f"Setting up version {number}")
        _set_up(tuning, model, number, actor)
        context.begin_step(90, f"Beginning a canary of version {number}")
        override = str(context.params.get("override", ""))
        with transaction.atomic():  # else a worker that dies in between begins a second rollout, which is refused
            rollout = rollout_start(model=model, actor=actor, candidate=number, override=override)
            _keep(tuning, rollout=rollout.name)
    return {"model": model.name, "version": tuning.applied["version"], "rollout": tuning.applied["rollout"]}


def canary_abandoned(job: Job) -> None:
    """Remove the copied files of an upload that did not become a version."""
    for tuning in Tuning.objects.filter(pk=job.params["tuning"]):
        if (upload := _begun(tuning)) is not None:
            _dispose(upload)


def _actor(job: Job) -> Actor:
    """Return the person who asked for the canary, with their present rights."""
    if job.created_by is None:
        raise Forbidden("the account that asked for this canary is gone: apply the tuning again")
    return Actor(user=cast(Any, job.created_by))


def _published(context: JobContext, tuning: Tuning, actor: Actor) -> int:
    """Return the number of the version that has the same files; publish it if that was not done before."""
    number = tuning.applied.get("version")
    if isinstance(number, int) and tuning.version.model.versions.filter(number=number).exists():
        return number
    upload = _upload(context, tuning, actor)
    part, job = _Part(context, upload), context.job
    note = f"The files of version {tuning.version.number}, with the configuration of tuning {tuning.pk}"
    try:
        while upload.state != UploadState.PUBLISHED:
            match upload.state:
                case UploadState.RECEIVING:
                    upload_complete(upload=upload, actor=actor, within=job)
                case UploadState.RECEIVED | UploadState.INSPECTING:
                    context.begin_step(20, "Inspecting the copy")
                    inspection_run(part)
                case UploadState.INSPECTED:
                    document = current_document(tuning.version.model)
                    upload_publish(upload=upload, actor=actor, document=document, note=note, load=False, within=job)
                case UploadState.PUBLISHING:
                    context.begin_step(50, "Publishing the copy")
                    publication_run(part)
                case _:
                    raise Conflict(upload.error or "the upload of the copy was cancelled; apply the tuning again")
            upload.refresh_from_db()
    except JobSuperseded:
        raise
    except Exception:
        upload.refresh_from_db()
        _dispose(upload)
        raise
    version = upload.versions.get()
    _keep(tuning, version=version.number)
    return version.number


def _upload(context: JobContext, tuning: Tuning, actor: Actor) -> Upload:
    """Return the upload with the files of the tuned version, which an earlier attempt may have begun."""
    begun = _begun(tuning)
    if begun is not None and begun.state not in _BEGIN_AGAIN:
        return begun
    if begun is not None:
        _dispose(begun)
    version = tuning.version
    context.begin_step(0, f"Copying the files of version {version.number}")
    folder = managed_repository().version_dir(version.model.name, version.number)
    files = _files(folder)
    rows = [{"path": name, "size": path.stat().st_size} for name, path in files.items()]
    with transaction.atomic():
        upload = upload_create(actor=actor, model_name=version.model.name, files=rows)
        _keep(tuning, upload=str(upload.pk))
    for number, path in enumerate(files.values()):
        upload_receive_file(upload=upload, number=number, source=path, actor=actor)
        context.check_cancelled()
    return upload


def _begun(tuning: Tuning) -> Upload | None:
    return Upload.objects.filter(pk=str(tuning.applied["upload"])).first() if "upload" in tuning.applied else None


def _files(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in storage.plain_files(folder) if name != OVERLAY_FILE}


def _set_up(tuning: Tuning, model: Model, number: int, actor: Actor) -> None:
    """Give the new version the chosen settings, in a release that serves the same versions as before."""
    document = current_document(model)
    own = own_settings(document.message, changed_document(tuning, model).message)
    settings = version_settings.settings_of(document.message)
    settings[number] = own
    config_apply(
        model=model,
        actor=actor,
        document=document.edited(lambda config: version_settings.set_settings(config, settings)),
        summary=f"Settings of version {number}, from tuning {tuning.pk}",
    )


def _keep(tuning: Tuning, **acts: object) -> None:
    tuning.applied = {**tuning.applied, **acts}
    Tuning.objects.filter(pk=tuning.pk).update(applied=tuning.applied)


def _dispose(upload: Upload) -> None:
    """Cancel an upload that does not become a version, and remove its files."""
    if upload.state in states.DISPOSABLE:
        states.cancel(upload)
        storage.remove_tree(upload.folder)
