"""Drift: changes that somebody made to the repository by hand. `watch` finds them, and a person adopts or overwrites them."""

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.catalog import version_states
from dashboard.catalog.archives import facts_in, reader_in
from dashboard.configuration.needs import code_of_version
from dashboard.configuration.services import document_check
from dashboard.models import Model, Release, Upload, Version
from dashboard.releases.bucket import bucket_point, bucket_send_adopted, bucket_transaction
from dashboard.releases.rollout_rules import traffic_adopted
from dashboard.releases.selectors import current_document, newest_release
from dashboard.releases.services import changed_by_hand, generation_bump, release_make, text_take_back
from dashboard.releases.storage import adopted_fingerprint, managed_repository, on_disk, write_config
from dashboard.shared.choices import ReleaseKind, UploadState, VersionState
from dashboard.shared.exceptions import Conflict, NotFound
from dashboard.shared.repository_errors import repository_errors
from repository.config import model_config
from repository.config.document import Document
from repository.core.errors import InvalidConfig
from repository.core.layout import check_name
from repository.files import drift
from repository.files.drift import Fingerprint

_NOTHING: Fingerprint = {"config": "", "files": {}}


def drift_check(seen: dict[int, Fingerprint] | None = None) -> list[str]:
    """Compare every model's folder with its adopted fingerprint, store the differences, and return the names of changed models.

    seen: the fingerprints of the caller's last check by model id. They are updated, so that a changed file is hashed only once.
    """
    seen = {} if seen is None else seen
    publishing = Upload.objects.filter(state=UploadState.PUBLISHING).values("model_name")
    moving = Version.objects.filter(state=VersionState.MOVING).values("model")
    found = []
    for model in Model.objects.exclude(name__in=publishing).exclude(pk__in=moving):
        seen[model.pk], sentences = _look(model, seen.get(model.pk))
        if sentences and _taken_back(model):
            seen[model.pk], sentences = _look(model, seen[model.pk])
        if sentences:
            found.append(model.name)
    return found


def _taken_back(model: Model) -> bool:
    """Call `text_take_back` with the model's row locked, and return its result."""
    with transaction.atomic():
        locked = Model.objects.select_for_update().filter(pk=model.pk).first()
        return locked is not None and text_take_back(locked)


def _look(model: Model, previous: Fingerprint | None = None) -> tuple[Fingerprint, list[str]]:
    """Return the present fingerprint of a model's folder and its differences from the adopted one, which are stored."""
    recorded = adopted_fingerprint(model)
    current = _fingerprint(model, previous or recorded)
    sentences = drift.compare(recorded, current)
    if sentences != model.drift:
        # The update changes nothing if somebody adopted or published meanwhile; the next check compares again.
        Model.objects.filter(pk=model.pk, fingerprint=model.fingerprint).update(drift=sentences)
    return current, sentences


def _fingerprint(model: Model, previous: Fingerprint) -> Fingerprint:
    folder = managed_repository().model_dir(model.name)
    return drift.fingerprint(folder, previous) if folder.is_dir() else _NOTHING


@repository_errors()
def drift_adopt(*, model: Model, actor: Actor) -> Release:
    """Adopt the folder on disk as a release: its text, new folders as versions, and missing versions as archived.

    Raises Forbidden if the actor may not operate, or may not upload code. Nobody has inspected the files, so they need the
    right to upload code.
    Raises Invalid if the text on disk is no valid configuration.
    """
    require(actor, Right.OPERATE)
    require(actor, Right.UPLOAD_CODE)
    bucket_send_adopted(model.name, adopted_fingerprint(model))
    return _adopt(model, actor)


def _adopt(model: Model, actor: Actor) -> Release:
    require(actor, Right.UPLOAD_CODE)
    with bucket_transaction():
        model = Model.locked(model.pk)
        # The text is read under the lock, because it is written again below and would overwrite an edit made in between.
        document = traffic_adopted(model, current_document(model), _adoptable(model.name))
        document_check(model=model, document=document, with_files=False)  # the files may have changed, too
        known = model.releases.exists()
        recorded, (found, sentences) = adopted_fingerprint(model), _look(model)
        _adopt_versions(model, actor)
        # The new stamp changes the file. Without a change, a server would keep using the configuration from an earlier load
        # request in place of this file (releases.overrides), as Triton does. A folder without a config.pbtxt gets none.
        release = release_make(
            model=model,
            actor=actor,
            kind=ReleaseKind.ADOPT,
            document=document,
            summary="Adopted what was changed on disk" if known else "Adopted from the disk",
            stamp=bool(document),
            begins=recorded["files"] != found["files"],
        )
        model.fingerprint = _fingerprint(model, found)
        model.drift = []
        model.save(update_fields=["fingerprint", "drift", "last_number"])
        bucket_point(model)
        audit_record(
            actor=actor,
            action="drift.adopt",
            model=model,
            summary=f"{model.name}: adopted what was changed on disk",
            after={"changes": sentences, "release": release.number, "text": release.text},
        )
    return release


def _adoptable(name: str) -> Document:
    """Return the document of config.pbtxt on disk, an empty one if there is no file.

    Raises InvalidConfig if the file is not text.
    """
    found = on_disk(name)
    if found.problem:
        raise InvalidConfig(found.problem)
    return found.document


@repository_errors()
def drift_overwrite(*, model: Model, actor: Actor) -> Release:
    """Write the newest release's text over the text on disk. This does not bring back files of versions."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        model = Model.locked(model.pk)
        release = newest_release(model)
        if release is None:
            raise Conflict(f"model '{model.name}' has no configuration to write")
        _write_over(model, release, actor)
        _look(model)
    return release


@repository_errors()
def drift_give_way(*, model: Model, actor: Actor) -> None:
    """Overwrite a text that was changed by hand, for an act that cannot wait until a person looks at it.

    It commits a separate transaction, so that the audit trail keeps the overwritten text even if the process is killed later.
    """
    require(actor, Right.OPERATE)
    with transaction.atomic():
        model = Model.locked(model.pk)
        release = newest_release(model)
        if release is not None and changed_by_hand(model, take_back=True):
            _write_over(model, release, actor)


def _write_over(model: Model, release: Release, actor: Actor) -> None:
    audit_record(
        actor=actor,
        action="drift.overwrite",
        model=model,
        summary=f"{model.name}: wrote release {release.number} over what was changed on disk",
        before={"text": on_disk(model.name).text or ""},
        after={"release": release.number},
    )
    write_config(model, release)
    generation_bump(model)


@repository_errors()
def model_adopt(*, name: str, actor: Actor) -> Model:
    """Make a model of a folder that somebody copied into the repository. The model is not loaded.

    Raises Forbidden if the actor may not upload code.
    Raises NotFound if there is no such folder. Raises Conflict if the folder is managed already.
    """
    require(actor, Right.UPLOAD_CODE)
    if not managed_repository().has_model(check_name(name)):
        raise NotFound(f"the repository has no folder '{name}'")
    bucket_send_adopted(name)
    with bucket_transaction():
        model, made = Model.objects.get_or_create(name=name, defaults={"created_by": actor.user})
        if not made:
            raise Conflict(f"model '{name}' is managed already")
        _adopt(model, actor)
    return model


def _adopt_versions(model: Model, actor: Actor) -> None:
    on_disk = set(managed_repository().versions(model.name)) if managed_repository().has_model(model.name) else set()
    known = {version.number: version for version in model.versions.all()}
    for number in sorted(on_disk - known.keys()):
        _adopt_version(model, number, actor)
    for number, version in known.items():
        if number not in on_disk and version.state == VersionState.PUBLISHED:
            version_states.missing(version)
    model.last_number = max([model.last_number, *on_disk])


def _adopt_version(model: Model, number: int, actor: Actor) -> Version:
    folder = managed_repository().version_dir(model.name, number)
    manifest, archive, reader = drift.manifest(folder), facts_in(folder), reader_in(folder)
    document = on_disk(model.name).document
    config = document.message
    return Version.objects.create(
        model=model,
        number=number,
        format=model_config.backend_of(config)
        or config.platform
        or (reader[0].backend if archive and reader else "unknown"),
        filename=next(iter(sorted(manifest.files)), ""),
        size_bytes=manifest.size,
        sha256=manifest.sha256,
        details={
            "runs_code": code_of_version(model.name, document, number),
            **({"archive": archive} if archive else {}),
        },
        config=document.text,
        note="Adopted from the disk",
        created_by=actor.user,
        created_by_name=actor.name,
    )
