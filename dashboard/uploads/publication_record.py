"""What the database is to know of a version that has just been put in place."""

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor
from dashboard.catalog.releases import generation_bump, release_record
from dashboard.catalog.selectors import current_text
from dashboard.catalog.storage import remember_beside, remember_config, remember_version
from dashboard.configuration.needs import code_of_version
from dashboard.configuration.services import revision_add
from dashboard.models import Model, Upload, Version
from dashboard.shared.choices import DesiredState, UploadState
from repository.files.storage import Manifest


def publication_record(*, upload: Upload, actor: Actor, manifest: Manifest) -> Version:
    """The version, its revision, release and audit entry, in one transaction. The upload's files may go then."""
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
        details={
            **{name: proposal[name] for name in kept if name in proposal},
            "files": sorted(manifest.files),
            "runs_code": code_of_version(model.name, upload.publication["text"], upload.publication["number"]),
        },
        note=upload.publication["note"],
        upload=upload,
        created_by=actor.user,
        created_by_name=actor.name,
    )


def _adopt_text(model: Model, text: str, actor: Actor, number: int) -> None:
    if text != current_text(model) or not model.revisions.exists():
        revision_add(model=model, text=text, actor=actor, summary=f"Published with version {number}")
    remember_config(model, text)
