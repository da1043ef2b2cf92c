"""From an inspected upload to an immutable version in the managed repository.

    reserve   a number and what was asked for, in the upload's row        (transaction)
    publish   files hashed, flushed, renamed into the repository          (file system, minutes for a large model)
    record    version, revision, release, audit entry                     (transaction)

A lock file in the upload's folder is held throughout. Whoever finds an upload in state `publishing` whose lock is free
knows that its process died, and finishes the work or takes it back: `repository_reconcile`.
"""

import contextlib
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction

from dashboard.authorisation import SYSTEM, Actor, Right, require
from dashboard.choices import DesiredState, UploadState, VersionState
from dashboard.exceptions import Conflict, Forbidden
from dashboard.models import Model, Upload, Version
from dashboard.services.audit import audit_record
from dashboard.services.configuration import current_text, refuse_drift, revision_add, text_check
from dashboard.services.models import last_number_ever
from dashboard.services.releases import chosen_versions, generation_bump, release_record
from dashboard.services.storage import (
    managed_repository,
    remember_beside,
    remember_config,
    remember_version,
    repository_errors,
)
from dashboard.services.uploads import upload_require_own
from repository import config_edit, model_config, publish, storage, version_policy
from repository.errors import Conflict as Held
from repository.storage import Manifest


@repository_errors()
def upload_publish(
    *,
    upload: Upload,
    actor: Actor,
    config_text: str,
    note: str = "",
    make_live: bool = False,
    load: bool = True,
) -> Version:
    """One new version, its configuration as a revision, an audit entry. The server may be down: `watch` loads later.

    make_live serves this version alone; load asks the servers for the model. With neither, what is served stays.
    """
    upload_require_own(upload=upload, actor=actor)
    _refuse_unfit(upload, actor, make_live or load)
    text_check(text=config_text, model_name=upload.model_name)
    with _held(upload):
        _reserve(upload, actor, config_text, {"note": note.strip()[:10_000], "make_live": make_live, "load": load})
        try:
            manifest = _place(upload)
        except BaseException:
            _take_back(upload)
            raise
        return _record(upload, actor, manifest)


@repository_errors()
def repository_reconcile() -> list[str]:
    """Finishes or takes back what a dead process was publishing; returns what it did, one sentence each."""
    done = []
    for upload in Upload.objects.filter(state=UploadState.PUBLISHING):
        with contextlib.suppress(Held), _held(upload, wait_s=0):
            upload.refresh_from_db()
            if upload.state == UploadState.PUBLISHING:
                done.append(_recover(upload))
    return done


def _recover(upload: Upload) -> str:
    number = upload.publication["number"]
    folder = managed_repository().version_dir(upload.model_name, number)
    if not folder.is_dir():
        _take_back(upload)
        return f"Version {number} of {upload.model_name} was not published; its upload can be published again."
    user = get_user_model().objects.filter(pk=upload.publication.get("actor")).first()
    _record(upload, Actor(user=user) if user else SYSTEM, storage.hash_tree(folder))
    return f"Finished the publication of version {number} of {upload.model_name}."


def _held(upload: Upload, wait_s: float = 0) -> contextlib.AbstractContextManager[None]:
    return storage.locked(upload.folder / "publish.lock", "this upload", wait_s=wait_s)


def _refuse_unfit(upload: Upload, actor: Actor, changes_service: bool) -> None:
    if upload.state != UploadState.INSPECTED:
        raise Conflict(f"the upload cannot be published: it is {upload.get_state_display().lower()}")
    error = next((row for row in upload.proposal.get("problems", []) if row["severity"] == "error"), None)
    if error is not None:
        raise Conflict(f"the upload cannot be published: {error['message']}")
    executes_code = bool(upload.proposal.get("executes_code", True))
    if not actor.may_upload_format(executes_code=executes_code):
        raise Forbidden(
            f"format {upload.proposal.get('format')} can run code; this needs the permission to upload code"
        )
    if changes_service:
        require(actor, Right.OPERATE)


def _reserve(upload: Upload, actor: Actor, text: str, asked: dict[str, Any]) -> None:
    """Gives out the number and remembers what is to be done, so that it can be finished after a crash."""
    with transaction.atomic():
        model, _ = Model.objects.get_or_create(
            name=upload.model_name,
            defaults={"created_by": actor.user, "last_number": last_number_ever(upload.model_name)},
        )
        model = Model.objects.select_for_update().get(pk=model.pk)
        refuse_drift(model, model.revisions.first())
        number = max([model.last_number, *_numbers_on_disk(model.name)]) + 1
        Model.objects.filter(pk=model.pk).update(last_number=number)
        publication = {
            **asked,
            "number": number,
            "actor": actor.user.pk if actor.user else None,
            "text": _final_text(model, text, number, asked),
        }
        changed = Upload.objects.filter(pk=upload.pk, state=UploadState.INSPECTED).update(
            state=UploadState.PUBLISHING, publication=publication
        )
        if not changed:
            raise Conflict("the upload is being published already")
    upload.refresh_from_db()


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


def _place(upload: Upload) -> Manifest:
    contents, publication = upload.contents, upload.publication
    model_files = {name: (upload.folder / path).read_bytes() for name, path in contents["model_files"].items()}
    return publish.publish_version(
        managed_repository(),
        name=upload.model_name,
        version=publication["number"],
        source=_version_dir(upload) if contents["files"] else None,
        config_text=publication["text"],
        model_files=model_files,
        move=True,
    )


def _version_dir(upload: Upload) -> Path:
    return upload.folder / "version"


def _take_back(upload: Upload) -> None:
    """The number stays used; the upload can be published again. A model made for this goes with it."""
    publishing = Upload.objects.filter(state=UploadState.PUBLISHING)
    with transaction.atomic():
        publishing.filter(pk=upload.pk).update(state=UploadState.INSPECTED, publication={})
        if not publishing.filter(model_name=upload.model_name).exists():
            Model.objects.filter(name=upload.model_name, versions=None, revisions=None).delete()


def _record(upload: Upload, actor: Actor, manifest: Manifest) -> Version:
    with transaction.atomic():
        model = Model.objects.select_for_update().get(name=upload.model_name)
        version = _version_row(upload, model, actor, manifest)
        _adopt_text(model, upload.publication["text"], actor, version.number)
        remember_version(model, version.number, manifest)
        remember_beside(model, upload.contents["model_files"])
        if upload.publication["load"] or upload.publication["make_live"]:
            model.desired_state = DesiredState.LOADED
            model.save(update_fields=["desired_state"])
            generation_bump(model)
        release = release_record(model=model, actor=actor, reason=f"Published version {version.number}")
        audit_record(
            actor=actor,
            action="version.publish",
            model=model,
            summary=f"Published version {version.number} of {model.name}",
            after={"version": version.number, "sha256": version.sha256, "live": release.versions if release else None},
        )
        rows = Upload.objects.filter(pk=upload.pk, state=UploadState.PUBLISHING)
        rows.update(state=UploadState.PUBLISHED, publication={})
    storage.remove_tree(upload.folder)
    upload.refresh_from_db()
    return version


def _version_row(upload: Upload, model: Model, actor: Actor, manifest: Manifest) -> Version:
    proposal = upload.proposal
    kept = ("opset", "producer", "backend", "problems")
    return Version.objects.create(
        model=model,
        number=upload.publication["number"],
        format=proposal.get("format", ""),
        filename=proposal.get("filename") or "",
        size_bytes=manifest.size,
        sha256=manifest.sha256,
        signature={"inputs": proposal.get("inputs", []), "outputs": proposal.get("outputs", [])},
        details={**{name: proposal[name] for name in kept if name in proposal}, "files": sorted(manifest.files)},
        note=upload.publication["note"],
        upload=upload,
        created_by=actor.user,
        created_by_name=actor.name,
    )


def _adopt_text(model: Model, text: str, actor: Actor, number: int) -> None:
    if text != current_text(model) or not model.revisions.exists():
        revision_add(model=model, text=text, actor=actor, summary=f"Published with version {number}")
    remember_config(model, text)
