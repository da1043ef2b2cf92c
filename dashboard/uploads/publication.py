"""From an inspected upload to an immutable version in the managed repository.

    upload_publish    a number and what was asked for, in the upload's row, with a job     (transaction)
    publication_run   the job: files staged, hashed, flushed                               (minutes for a large model)
                      the text decided, with the rights that it takes, and remembered      (transaction)
                      the version renamed into place; version, revision, release, audit    (transaction)

A lock file in the upload's folder is held by the job throughout. A job whose worker died is queued again and goes on: what
lies in place is recorded, what does not is staged anew. `repository_reconcile` looks after uploads whose job has ended.
"""

import contextlib
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from dashboard.access.authorisation import SYSTEM, Actor, Right
from dashboard.catalog.releases import chosen_versions
from dashboard.catalog.selectors import current_text
from dashboard.catalog.services import last_number_ever
from dashboard.catalog.storage import disk_text, managed_repository
from dashboard.configuration.needs import beside_files, publication_needs, refuse_unmet, rights_of
from dashboard.configuration.services import refuse_drift, text_check
from dashboard.jobs.context import JobCancelled, JobContext, JobSuperseded
from dashboard.jobs.progress import JobProgress
from dashboard.jobs.runner import job_run_here
from dashboard.jobs.services import UNFINISHED, job_create
from dashboard.models import ConfigRevision, Job, Model, Upload, Version
from dashboard.shared.choices import DesiredState, UploadState, VersionState
from dashboard.shared.exceptions import Conflict, DashboardError
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads.publication_record import publication_record
from dashboard.uploads.services import expiry, upload_require_own
from repository.config import edit as config_edit
from repository.config import model_config, version_policy
from repository.core.errors import Conflict as Held
from repository.files import publish, storage
from repository.files.progress import SILENT, Progress
from repository.files.storage import Manifest

LOCK_WAIT_S = 30.0  # a worker that was taken for lost lets go within a step


@repository_errors()
def upload_publish(
    *,
    upload: Upload,
    actor: Actor,
    config_text: str | None = None,
    base_revision: int | None = None,
    note: str = "",
    make_live: bool = False,
    load: bool = True,
) -> Job:
    """One new version, its configuration as a revision, an audit entry. The server may be down: `watch` loads later.

    config_text: None leaves the configuration that the model has, and takes the proposed one for a model without.
    base_revision: the model's configuration that the text was made from, by default the one at the inspection; Conflict
    where another text came meanwhile.
    make_live serves this version alone; load asks the servers for the model. With neither, what is served stays.
    A small upload is published when this returns (the job says whether it was), a large one by a worker.
    """
    upload_require_own(upload=upload, actor=actor)
    _refuse_unfit(upload)
    if config_text is not None:
        text_check(text=config_text, model_name=upload.model_name)
    at_once = upload.size_bytes <= settings.AT_ONCE_BYTES
    asked = {
        "config_text": config_text,
        "base_revision": upload.proposal.get("base_revision") if base_revision is None else base_revision,
        "strict": base_revision is not None,  # refused even where the texts are the same
        "note": note.strip()[:10_000],
        "make_live": make_live,
        "load": load,
        "rights": [right.name for right in rights_of(actor)],
    }
    with transaction.atomic():
        model, number = _reserve(upload, actor, asked)
        job = job_create(
            kind="publish",
            params={"upload": str(upload.pk)},
            actor=actor,
            title=f"Publish version {number} of {model.name}",
            model=model,
            announce=not at_once,
        )
        Upload.objects.filter(pk=upload.pk).update(job=job)
    if at_once:
        job_run_here(job=job)
    upload.refresh_from_db()
    return job


def publication_run(*, upload: Upload, context: JobContext) -> dict[str, Any]:
    """The job `publish`. Whatever ends it before its end leaves the upload as it was, with the reason."""
    with repository_errors(), _held(upload, wait_s=LOCK_WAIT_S):
        upload.refresh_from_db()
        if upload.state != UploadState.PUBLISHING:
            raise Conflict(f"the upload is not being published any more: it is {upload.get_state_display().lower()}")
        progress = JobProgress(context)
        try:
            with repository_errors():
                version = _place(upload, progress)
        except JobSuperseded:
            raise
        except Exception as error:
            _take_back(upload, _reason(error))
            raise
        storage.remove_tree(upload.folder)
    return {"model": upload.model_name, "version": version.number}


def publication_abandoned(*, job: Job) -> None:
    """Its job was ended while nobody ran it. What is in place already is finished by `repository_reconcile`."""
    for upload in Upload.objects.filter(job=job, state=UploadState.PUBLISHING):
        _take_back(upload, job.error or "publishing was cancelled")


@repository_errors()
def repository_reconcile() -> list[str]:
    """Finishes or takes back what no job publishes any more; returns what it did, one sentence each."""
    done = []
    for upload in Upload.objects.filter(state=UploadState.PUBLISHING).exclude(job__state__in=UNFINISHED):
        with contextlib.suppress(Held), _held(upload, wait_s=0):
            upload.refresh_from_db()
            if upload.state == UploadState.PUBLISHING:
                done.append(_recover(upload))
    return done


def _recover(upload: Upload) -> str:
    number = upload.publication["number"]
    manifest = _placed(upload)
    if manifest is None:
        _take_back(upload, "publishing was broken off")
        return f"Version {number} of {upload.model_name} was not published; its upload can be published again."
    _finished(upload, manifest)
    storage.remove_tree(upload.folder)
    return f"Finished the publication of version {number} of {upload.model_name}."


def _placed(upload: Upload, progress: Progress = SILENT) -> Manifest | None:
    """What an earlier attempt put in place before it died."""
    folder = _version_folder(upload)
    if not folder.is_dir():
        return None
    progress.plan(storage.tree_size(folder))
    progress.step("Hashing")
    return storage.hash_tree(folder, progress)


def _version_folder(upload: Upload) -> Path:
    return managed_repository().version_dir(upload.model_name, upload.publication["number"])


def _publisher(upload: Upload) -> Actor:
    user = get_user_model().objects.filter(pk=upload.publication["actor"]).first()
    return Actor(user=user) if user else SYSTEM


def _reason(error: BaseException) -> str:
    if isinstance(error, DashboardError):
        return error.message
    return "publishing was cancelled" if isinstance(error, JobCancelled) else "publishing was broken off"


def _held(upload: Upload, wait_s: float = 0) -> contextlib.AbstractContextManager[None]:
    return storage.locked(upload.folder / "publish.lock", "this upload", wait_s=wait_s)


def _refuse_unfit(upload: Upload) -> None:
    if upload.state != UploadState.INSPECTED:
        raise Conflict(f"the upload cannot be published: it is {upload.get_state_display().lower()}")
    error = next((row for row in upload.proposal.get("problems", []) if row["severity"] == "error"), None)
    if error is not None:
        raise Conflict(f"the upload cannot be published: {error['message']}")


def _reserve(upload: Upload, actor: Actor, asked: dict[str, Any]) -> tuple[Model, int]:
    """Gives out the number and remembers what is to be done, so that it can be finished after a crash."""
    model, made = Model.objects.get_or_create(
        name=upload.model_name,
        defaults={"created_by": actor.user, "last_number": last_number_ever(upload.model_name)},
    )
    if made and managed_repository().has_model(model.name):
        raise Conflict(
            f"the repository has a folder '{model.name}' that is not managed: adopt it first, or take another name"
        )
    model = Model.objects.select_for_update().get(pk=model.pk)
    current = model.revisions.first()
    refuse_drift(model, current)
    number = max([model.last_number, *_numbers_on_disk(model.name)]) + 1
    _text(upload, model, asked, number, upload.folder / "version")
    Model.objects.filter(pk=model.pk).update(last_number=number)
    base = current.number if current else 0
    publication = {
        **asked,
        "base_revision": base,
        "strict": False,
        "number": number,
        "actor": actor.user.pk if actor.user else None,
    }
    changed = Upload.objects.filter(pk=upload.pk, state=UploadState.INSPECTED).update(
        state=UploadState.PUBLISHING, publication=publication, error=""
    )
    if not changed:
        raise Conflict("the upload is being published already")
    return model, number


def _text(upload: Upload, model: Model, asked: dict[str, Any], number: int, folder: Path) -> str:
    """What config.pbtxt becomes, by what the model has now; `model` is locked.

    Conflict where the text was made from another configuration; Forbidden where it takes a right that is missing.
    """
    current = model.revisions.first()
    text: str | None = asked["config_text"]
    if text is None:
        text = text_by_default(upload, current)
        text_check(text=text, model_name=upload.model_name)
    if asked["strict"] or current is None or text != current.text:
        _refuse_outdated(upload.model_name, current, asked)
    final = _final_text(model, text, number, asked)
    loaded = asked["make_live"] or asked["load"] or model.desired_state == DesiredState.LOADED
    needs = publication_needs(
        upload=upload,
        current=current,
        text=text,
        number=number,
        folder=folder,
        changes_service=asked["load"] or (loaded and number in chosen_versions(model, final, also=[number])),
    )
    refuse_unmet(needs, [Right[name] for name in asked["rights"]])
    return final


def text_by_default(upload: Upload, current: ConfigRevision | None) -> str:
    """The configuration that the upload brings; else the one that the model has; else what inspection proposes."""
    if current is None or upload.proposal.get("config_source") == "upload":
        return str(upload.proposal.get("config", ""))
    return current.text


def _refuse_outdated(name: str, current: ConfigRevision | None, asked: dict[str, Any]) -> None:
    base, now = asked["base_revision"], current.number if current else 0
    if base is None or base == now:
        return
    when = "while version {number} was being published" if "number" in asked else "since this was made from {base}"
    raise Conflict(
        f"the configuration of '{name}' was changed {when.format(number=asked.get('number'), base=base or 'none')}, to "
        f"configuration {now}; look at it again, then publish once more"
    )


def _numbers_on_disk(name: str) -> list[int]:
    repository = managed_repository()
    return [*repository.versions(name), *publish.archived_versions(repository, name)]


def _final_text(model: Model, text: str, number: int, asked: dict[str, Any]) -> str:
    """The reviewed text, with the version policy that what was asked for needs.

    A version that nobody made live must not become so at the next restart: then the policy names those that are.
    """
    config = model_config.parse(text)
    published = list(model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))
    after = version_policy.select(config, [*published, number])
    if asked["make_live"]:
        wanted = [number]
    elif asked["load"] or model.desired_state == DesiredState.UNLOADED or number not in after:
        return text
    else:
        wanted = chosen_versions(model, current_text(model))
    if wanted and after != wanted:
        version_policy.set_specific(config, wanted)
        return config_edit.apply(text, config)
    return text


def _place(upload: Upload, progress: JobProgress) -> Version:
    """Also goes on where an earlier attempt died: what that put in place is recorded."""
    manifest = _placed(upload, progress)
    if manifest is not None:
        return _finished(upload, manifest)
    number = upload.publication["number"]
    source = upload.folder / "version" if upload.contents["files"] else None
    repository = managed_repository()
    with publish.stage_version(repository, version=number, source=source, move=True, progress=progress) as staged:
        progress.step("Placing it in the repository")
        while (version := _put(upload, staged, _decide(upload, staged.folder))) is None:
            pass  # another configuration came in between: look at it again
    return version


def _finished(upload: Upload, manifest: Manifest) -> Version:
    """Records a version that was put in place by an attempt that died, perhaps before it wrote what lies beside it."""
    with transaction.atomic():
        model = Model.objects.select_for_update().get(name=upload.model_name)
        if (disk_text(model.name) or "") == current_text(model):
            text, files = upload.publication["text"], _beside(upload)
            publish.write_beside(managed_repository(), name=model.name, config_text=text, model_files=files)
        return publication_record(upload=upload, actor=_publisher(upload), manifest=manifest)


def _beside(upload: Upload) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in beside_files(upload).items()}


def _decide(upload: Upload, folder: Path) -> int:
    """Remembers what config.pbtxt becomes, for the model may have changed in the meantime; the revision it was decided on."""
    publication = upload.publication
    with transaction.atomic():
        model = Model.objects.select_for_update().get(name=upload.model_name)
        current = model.revisions.first()
        refuse_drift(model, current)
        publication["text"] = _text(upload, model, publication, publication["number"], folder)
        Upload.objects.filter(pk=upload.pk).update(publication=publication)
    return current.number if current else 0


def _put(upload: Upload, staged: publish.Staged, decided_on: int) -> Version | None:
    """The version in its place and in the database, both while nobody else changes the model; None where somebody just did."""
    files = _beside(upload)
    with transaction.atomic():
        model = Model.objects.select_for_update().get(name=upload.model_name)
        current = model.revisions.first()
        if (current.number if current else 0) != decided_on:
            return None
        refuse_drift(model, current)
        text = upload.publication["text"]
        publish.place_version(managed_repository(), staged, name=model.name, config_text=text, model_files=files)
        return publication_record(upload=upload, actor=_publisher(upload), manifest=staged.manifest)


def _take_back(upload: Upload, reason: str) -> None:
    """The number stays used; the upload can be published again. A model made for this goes with it.

    Not where the version is in place already: then only the record is missing, and that is made up for.
    """
    if _version_folder(upload).is_dir():
        return
    publishing = Upload.objects.filter(state=UploadState.PUBLISHING)
    with transaction.atomic():
        publishing.filter(pk=upload.pk).update(state=UploadState.INSPECTED, error=reason, expires_at=expiry())
        if not publishing.filter(model_name=upload.model_name).exists():
            Model.objects.filter(name=upload.model_name, versions=None, revisions=None).delete()
