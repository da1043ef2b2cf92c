"""Publishes an inspected upload as an immutable version in the managed repository.

    upload_publish    a number and the request, in the upload's row, with a job            (transaction: states.publish)
                      and the text as decided now, after a check of rights
    publication_run   the job: files staged, hashed, flushed                               (minutes for a large model)
                      the text decided again if the model changed, and remembered    (transaction: states.decide)
                      the version renamed into place; version, release, audit entry        (transaction: states.finish)

A job whose worker died is queued again and continues: a version that is in place is recorded, otherwise it is staged again.
`publications_recover` finishes or takes back publications whose job has ended.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.catalog.archives import facts_in
from dashboard.catalog.services import last_number_ever
from dashboard.configuration.model_files import file_of_upload
from dashboard.configuration.needs import beside_files, code_of_version
from dashboard.configuration.services import document_check
from dashboard.jobs.context import JobCancelled, JobContext, undone_by
from dashboard.jobs.progress import JobProgress
from dashboard.jobs.runner import job_run_here
from dashboard.jobs.services import UNFINISHED, job_create
from dashboard.models import Job, Model, Release, Upload, Version
from dashboard.models.upload_json import Publication, PublishRequest
from dashboard.releases.bucket import bucket_send, bucket_transaction
from dashboard.releases.selectors import current_document, newest_release, wanted_versions
from dashboard.releases.services import refuse_drift, release_make, text_take_back
from dashboard.releases.storage import managed_repository, on_disk, remember_publication
from dashboard.shared.choices import ReleaseKind, UploadState
from dashboard.shared.exceptions import Conflict, DashboardError, WrongState
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads import states
from dashboard.uploads.fetching import source_title
from dashboard.uploads.review import decide_document, number_of
from dashboard.uploads.services import upload_require_own
from dashboard.uploads.tensors import signature_with
from repository.config.document import Document, stamp_of
from repository.core.errors import Conflict as Held
from repository.core.layout import ModelRepository
from repository.files import publish, storage
from repository.files.progress import SILENT, Progress
from repository.files.storage import Manifest

LOCK_WAIT_S = 30.0  # a worker that was wrongly taken for dead releases the lock within one step


# -- request -----------------------------------------------------------------------------------------------------------
@repository_errors()
def upload_publish(
    *,
    upload: Upload,
    actor: Actor,
    document: Document | None = None,
    base_release: int | None = None,
    note: str = "",
    make_live: bool = False,
    load: bool = True,
    within: Job | None = None,
) -> Job:
    """Publish one new version, with a release and an audit entry. The server may be down, because `watch` loads it later.

    document: the configuration to publish, by default the present one of the model, or the proposed one of a new model.
    base_release: the model's release that the document was made from, by default the newest one at the inspection. make_live:
    serve only this version. load: load the model. With neither, the served versions do not change. within: a job that publishes
    as a part of its own work; it calls `publication_run` after this returns. Otherwise a small upload is published before this
    returns (see the job's state), and a large one by a worker.
    Raises Outdated if the model's text has changed since `base_release`.
    """
    upload_require_own(upload=upload, actor=actor)
    _refuse_unfit(upload)
    if document is not None:
        document_check(document=document, model_name=upload.model_name)
    request = PublishRequest(
        document=document,
        base_release=upload.proposal.get("base_release") if base_release is None else base_release,
        strict=base_release is not None,
        note=note.strip()[:10_000],
        make_live=make_live,
        load=load,
        rights=tuple(right.name for right in actor.rights()),
    )
    at_once = within is None and upload.size_bytes <= settings.AT_ONCE_BYTES
    job, decided = _reserve(upload, actor, request, announce=not at_once, within=within)
    if at_once:
        job_run_here(job=job, work=partial(publication_run, decided=decided))
    upload.refresh_from_db()
    return job


def _refuse_unfit(upload: Upload) -> None:
    states.refuse_unless(upload, "publish")
    error = next((row for row in upload.proposal.get("problems", []) if row["severity"] == "error"), None)
    if error is not None:
        raise Conflict(f"the upload cannot be published: {error['message']}")


class _Stand(NamedTuple):
    """The facts of a model that decide a publication's text. release: the number of its newest release, 0 for none. published:
    the numbers of its versions."""

    release: int
    generation: int
    published: list[int]


class _Decided(NamedTuple):
    """A publication with its configuration, and the facts of the model that decided the configuration."""

    publication: Publication
    document: Document
    stand: _Stand


def _reserve(
    upload: Upload, actor: Actor, request: PublishRequest, *, announce: bool, within: Job | None
) -> tuple[Job, _Decided]:
    """Reserve the version's number and store the request, so that it can be finished after a crash."""
    with transaction.atomic():
        repository = managed_repository()
        model = _model_for(upload, actor, repository)
        current = newest_release(model)
        refuse_drift(model)
        number = max([model.last_number, *repository.numbers(model.name)]) + 1
        folder = upload.folder / "version"
        document = decide_document(
            upload=upload, model=model, current=current, request=request, number=number, folder=folder
        )
        Model.objects.filter(pk=model.pk).update(last_number=number)
        job = within or job_create(
            kind="publish",
            params={"upload": str(upload.pk)},
            actor=actor,
            title=f"Publish version {number} of {model.name}",
            model=model,
            announce=announce,
        )
        # The person has seen the present text, so only later releases can outdate the request.
        stand = _stand(model, current)
        request = replace(request, base_release=stand.release, strict=False)
        publication = Publication(
            request,
            number=number,
            actor=actor.user.pk if actor.user else None,
            text=document.stamped(stand.release + 1),
        )
        states.publish(upload, publication=publication, job=job)
    return job, _Decided(publication, document, stand)


def _stand(model: Model, newest: Release | None) -> _Stand:
    return _Stand(newest.number if newest else 0, model.generation, model.published_numbers())


def _model_for(upload: Upload, actor: Actor, repository: ModelRepository) -> Model:
    """Return the model's row, locked; create the row if there is none."""
    model, made = Model.objects.get_or_create(
        name=upload.model_name,
        defaults={"created_by": actor.user, "last_number": last_number_ever(upload.model_name)},
    )
    if made and repository.has_model(model.name):
        raise Conflict(
            f"the repository has a folder '{model.name}' that is not managed: adopt it first, or take another name"
        )
    return _locked(upload)


# -- run ---------------------------------------------------------------------------------------------------------------
def publication_run(context: JobContext, decided: _Decided | None = None) -> dict[str, Any]:
    """Run the job `publish`, whose params are {"upload": id}. An error leaves the upload as it was, with the reason.

    decided: the decision of `upload_publish`, if it runs the job itself.

    If an earlier attempt died after its last transaction, only the job's outcome is missing.
    """
    upload = Upload.objects.get(pk=context.params["upload"])
    with repository_errors(), states.held(upload, wait_s=LOCK_WAIT_S):
        upload.refresh_from_db()
        version = upload.versions.first()
        if version is None:
            states.refuse_unless(upload, "finish")
            with undone_by(lambda error: _take_back(upload, _reason(error))), repository_errors():
                version = _place(upload, JobProgress(context), decided)
        storage.remove_tree(upload.folder)
    return {"model": upload.model_name, "version": version.number}


def _place(upload: Upload, progress: JobProgress, decided: _Decided | None) -> Version:
    """Stage and place the version. A version that an earlier attempt placed before it died is only recorded."""
    publication, repository = decided.publication if decided else _publication(upload), managed_repository()
    folder = repository.version_dir(upload.model_name, publication.number)
    manifest = _placed(folder, progress)
    if manifest is not None:
        return _finish_placed(upload, publication, manifest, folder)
    source = upload.folder / "version" if upload.contents.get("files") else None
    with publish.stage_version(
        repository,
        version=publication.number,
        source=source,
        move=True,
        signing_key=settings.SIGNING_KEY,
        progress=progress,
    ) as staged:
        bucket_send(staged.folder, staged.manifest, progress)
        progress.step("Placing it in the repository")
        decided = decided or _decide(upload, publication, staged.folder)
        while (version := _put(upload, repository, staged, decided)) is None:  # the model has changed in between
            decided = _decide(upload, publication, staged.folder)
    return version


def _decide(upload: Upload, publication: Publication, folder: Path) -> _Decided:
    """Decide the text by the model's present state, and store it."""
    with transaction.atomic():
        model = _locked(upload)
        current = newest_release(model)
        refuse_drift(model)
        number = publication.number
        document = decide_document(
            upload=upload,
            model=model,
            current=current,
            request=publication.request,
            number=number,
            folder=folder,
            since=f"while version {number} was being published",
        )
        stand = _stand(model, current)
        decided = replace(publication, text=document.stamped(stand.release + 1))
        states.decide(upload, publication=decided)
    return _Decided(decided, document, stand)


def _put(upload: Upload, repository: ModelRepository, staged: publish.Staged, decided: _Decided) -> Version | None:
    """Place and record the version while the model is locked. If the model changed since the decision, only return None."""
    with bucket_transaction():
        model = _locked(upload)
        if _stand(model, newest_release(model)) != decided.stand:
            return None
        publication = decided.publication
        refuse_drift(model)
        states.finish(upload)  # this comes first, so that an upload that was taken back places nothing
        document, files = decided.document, _beside(upload)
        release = decided.stand.release + 1
        with publish.placed_version(
            repository, staged, name=model.name, document=document, release=release, model_files=files
        ) as placed:
            return _record(upload, model, publication, document, staged.manifest, placed, files)


def _record(
    upload: Upload,
    model: Model,
    publication: Publication,
    document: Document,
    manifest: Manifest,
    folder: Path,
    beside: Iterable[str],
) -> Version:
    """Record a version that was just placed, in the caller's transaction."""
    actor, request = _publisher(publication), publication.request
    version = _version_row(upload, model, actor, publication, document, manifest, folder)
    remember_publication(model, number=version.number, manifest=manifest, text=publication.text or "", beside=beside)
    release = release_make(
        model=model,
        actor=actor,
        kind=ReleaseKind.PUBLISH,
        document=document,
        summary=f"Published version {version.number}",
        write=False,
        load=request.load or request.make_live,
    )
    audit_record(
        actor=actor,
        action="version.publish",
        model=model,
        summary=f"Published version {version.number} of {model.name}",
        after={
            "version": version.number,
            "sha256": version.sha256,
            **({"continues": release.continues.number} if release.continues else {"release": release.number}),
            "versions": release.versions,
        },
    )
    return version


def _version_row(
    upload: Upload,
    model: Model,
    actor: Actor,
    publication: Publication,
    document: Document,
    manifest: Manifest,
    folder: Path,
) -> Version:
    proposal = upload.proposal
    archive, lineage = facts_in(folder), upload.conversion.get("lineage")
    kept = ("opset", "producer", "backend", "problems", "class_names", "signature")
    return Version.objects.create(
        model=model,
        number=publication.number,
        format=proposal.get("format", ""),
        filename=proposal.get("filename") or "",
        size_bytes=manifest.size,
        sha256=manifest.sha256,
        signature=signature_with(upload.proposal, document),
        details={
            **{name: proposal[name] for name in kept if name in proposal},
            **({"archive": archive} if archive else {}),
            **({"lineage": lineage} if lineage else {}),
            **({"fetched_from": source_title(upload)} if upload.source else {}),
            "files": sorted(manifest.files),
            "runs_code": code_of_version(model.name, document, publication.number),
        },
        config=_fitting(upload, model, publication.request, document).text,
        note=publication.request.note,
        upload=upload,
        created_by=actor.user,
        created_by_name=actor.name,
    )


def _fitting(upload: Upload, model: Model, request: PublishRequest, decided: Document) -> Document:
    """Return a document that fits the version's files: the published or typed one, or the inspection's proposal."""
    given = request.document
    fitting = str(upload.proposal.get("fitting", ""))
    proposed = Document.read(fitting) if fitting else None
    if proposed is not None and (given is None or given.same_text(current_document(model))):
        return proposed
    served = request.make_live or request.load
    file, chosen = file_of_upload(upload), (decided, given) if served else (given, decided)
    known: list[Document | None] = [*chosen, proposed]
    for document in known:
        if document and not any(misfit.certain for misfit in document.misfits(file)):
            return document
    return decided


# -- broken off --------------------------------------------------------------------------------------------------------
def publication_abandoned(job: Job) -> None:
    """Take back the uploads of a job that was ended while no worker ran it. `publications_recover` finishes placed versions."""
    for upload in job.uploads.all():
        _take_back(upload, job.error or "publishing was cancelled")


@repository_errors()
def publications_recover() -> list[str]:
    """Finish or take back publications without a running job; return one sentence for each publication."""
    done = []
    for upload in Upload.objects.filter(state=UploadState.PUBLISHING).exclude(job__state__in=UNFINISHED):
        with contextlib.suppress(Held, WrongState), states.held(upload):
            upload.refresh_from_db()
            states.refuse_unless(upload, "finish")
            done.append(_recover(upload))
    return done


def _recover(upload: Upload) -> str:
    publication = _publication(upload)
    folder = _version_folder(upload, publication)
    manifest = _placed(folder)
    if manifest is None:
        _take_back(upload, "publishing was broken off")
        return (
            f"Version {publication.number} of {upload.model_name} was not published; its upload can be published again."
        )
    _finish_placed(upload, publication, manifest, folder)
    storage.remove_tree(upload.folder)
    return f"Finished the publication of version {publication.number} of {upload.model_name}."


def _placed(folder: Path, progress: Progress = SILENT) -> Manifest | None:
    """Return the manifest of a version that an earlier attempt placed before it died, or None if no attempt placed one."""
    if not folder.is_dir():
        return None
    progress.plan(storage.tree_size(folder))
    progress.step("Hashing")
    return storage.hash_tree(folder, progress)


def _finish_placed(upload: Upload, publication: Publication, manifest: Manifest, folder: Path) -> Version:
    """Record a version that was placed by an attempt that died, perhaps before it wrote the files next to the version."""
    with bucket_transaction():
        model = _locked(upload)
        states.finish(upload)
        newest, found, files = newest_release(model), on_disk(model.name).document, _beside(upload)
        document = _document_now(upload, model, publication, folder)
        number = number_of(newest) + 1
        if text_take_back(model) or found.same_text(current_document(model)):  # otherwise the text was changed by hand
            publish.write_beside(
                managed_repository(), name=model.name, document=document, release=number, model_files=files
            )
        publication = replace(publication, text=document.stamped(number))
        return _record(upload, model, publication, document, manifest, folder, files)


def _document_now(upload: Upload, model: Model, publication: Publication, folder: Path) -> Document:
    """Return the decided configuration. If there is a newer release, decide again, to keep that release's changes."""
    newest = newest_release(model)
    if stamp_of(publication.text or "") == number_of(newest) + 1:
        return publication.document
    try:
        return decide_document(
            upload=upload,
            model=model,
            current=newest,
            request=publication.request,
            number=publication.number,
            folder=folder,
        )
    except DashboardError:  # the files are in place, so the version is published, but does not go live
        there = [*model.published_numbers(), publication.number]
        return current_document(model).pinned(wanted_versions(model), there)


def _take_back(upload: Upload, reason: str) -> None:
    """Take back a publication: the upload can be published again, under a new number. A model made for it is removed.

    If the version is already in place, nothing is taken back: then only its record is missing, and is written later.
    """
    publication = upload.last_publication
    if publication is None or _version_folder(upload, publication).is_dir():
        return
    with contextlib.suppress(WrongState), transaction.atomic():
        # The model's row is locked before the upload's, as everywhere.
        Model.objects.select_for_update().filter(name=upload.model_name).first()
        states.take_back(upload, reason=reason)
        if not Upload.objects.filter(state=UploadState.PUBLISHING, model_name=upload.model_name).exists():
            Model.objects.filter(name=upload.model_name, versions=None, releases=None).delete()


# -- common parts ------------------------------------------------------------------------------------------------------
def _publication(upload: Upload) -> Publication:
    publication = upload.last_publication
    if publication is None:
        raise Conflict("nobody has asked for this upload to be published")
    return publication


def _version_folder(upload: Upload, publication: Publication) -> Path:
    return managed_repository().version_dir(upload.model_name, publication.number)


def _locked(upload: Upload) -> Model:
    """Return the model's row, locked. Raises Conflict if the model was removed with the publication that made it."""
    model = Model.objects.select_for_update().filter(name=upload.model_name).first()
    if model is None:
        raise Conflict(f"model '{upload.model_name}' was removed meanwhile; publish the upload once more")
    return model


def _publisher(publication: Publication) -> Actor:
    if publication.actor is None:
        return SYSTEM
    user = get_user_model().objects.filter(pk=publication.actor).first()
    return Actor(user=user) if user else SYSTEM


def _beside(upload: Upload) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in beside_files(upload).items()}


def _reason(error: BaseException) -> str:
    if isinstance(error, DashboardError):
        return error.message
    return "publishing was cancelled" if isinstance(error, JobCancelled) else "publishing was broken off"
