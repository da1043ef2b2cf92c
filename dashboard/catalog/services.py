"""Writes about a model as a whole: load, unload, describe, delete."""

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.accounts.tokens import auth_file_kept, tokens_forget_model
from dashboard.models import AuditEntry, Model, ModelState, Upload
from dashboard.releases.bucket import bucket_point_soon, bucket_ready, bucket_remove
from dashboard.releases.selectors import current_document
from dashboard.releases.services import generation_bump, model_want
from dashboard.releases.storage import managed_repository
from dashboard.servers.wanted import with_production
from dashboard.shared.choices import DesiredState, ModelStatus, UploadState, VersionState
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.release import check_references
from dashboard.shared.repository_errors import repository_errors
from repository.files import publish

MAX_TAGS, MAX_TAG_LENGTH = 20, 40
_VERBS = {DesiredState.LOADED: ("model.load", "Load"), DesiredState.UNLOADED: ("model.unload", "Unload")}


def model_load(*, model: Model, actor: Actor) -> Model:
    """Record that the model should be loaded, so that `watch` loads it or retries a load that failed; an ensemble's steps, too.

    Raises Forbidden if the actor may not operate.
    Raises Conflict if no version is published.
    """
    require(actor, Right.OPERATE)
    if not model.versions.filter(state=VersionState.PUBLISHED).exists():
        raise Conflict(f"model '{model.name}' has no published version to load")
    return _want(model, DesiredState.LOADED, actor)


def model_unload(*, model: Model, actor: Actor) -> Model:
    """Record that `watch` should unload the model after its present requests. Raises Forbidden if the actor may not operate,
    Conflict if production wants chosen models and this is one."""
    return _want(model, DesiredState.UNLOADED, actor)


def _want(model: Model, desired: DesiredState, actor: Actor) -> Model:
    require(actor, Right.OPERATE)
    action, verb = _VERBS[desired]
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = model.desired_state
        if desired == DesiredState.LOADED:
            model_want(model=model, document=current_document(model), actor=actor)
        else:
            if with_production(Model.objects.filter(pk=model.pk)).filter(everything=False, wished=True).exists():
                raise Conflict(f"production wants '{model.name}' by choice: take it out there, in what is wanted")
            model.desired_state = desired
            model.save(update_fields=["desired_state"])
        bucket_point_soon(model)
        audit_record(
            actor=actor,
            action=action,
            model=model,
            summary=f"{verb} {model.name}" + (" again" if before == desired else ""),
            before={"desired_state": before},
            after={"desired_state": str(desired)},
        )
        generation_bump(model)
    return model


def model_describe(
    *, model: Model, actor: Actor, description: str | None = None, tags: list[str] | None = None
) -> Model:
    """Change the description or tags of a model; a value of None changes nothing.

    Raises Invalid if there are too many tags, or a tag is too long.
    """
    require(actor, Right.OPERATE)
    clean = None if tags is None else _clean_tags(tags)
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = {"description": model.description, "tags": model.tags}
        model.description = model.description if description is None else description.strip()[:10_000]
        model.tags = model.tags if clean is None else clean
        after = {"description": model.description, "tags": model.tags}
        if before != after:
            model.save(update_fields=["description", "tags"])
            bucket_point_soon(model)
            audit_record(
                actor=actor,
                action="model.describe",
                model=model,
                summary=f"Described {model.name}",
                before=before,
                after=after,
            )
    return model


def _clean_tags(tags: list[str]) -> list[str]:
    clean = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(clean) > MAX_TAGS or any(len(tag) > MAX_TAG_LENGTH for tag in clean):
        raise Invalid(f"expected at most {MAX_TAGS} tags of at most {MAX_TAG_LENGTH} characters each")
    return clean


@repository_errors()
def model_delete(*, model: Model, actor: Actor, confirm_name: str) -> None:
    """Delete an unloaded model with all its files.

    confirm_name: must be the model's name, else Invalid.
    Raises Conflict if the model is loaded, a job moves its files, or a newer release keeps something of it. Raises StorageFull
    if auth.json, from which the model's name is removed, cannot be written.
    """
    require(actor, Right.OPERATE)
    if confirm_name != model.name:
        raise Invalid(f"type the model's name, '{model.name}', to delete it")
    bucket_ready()
    with auth_file_kept() as write_auth_file:
        model = Model.locked(model.pk)
        _refuse_served(model)
        count = model.versions.count()
        audit_record(
            actor=actor,
            action="model.delete",
            model_name=model.name,
            summary=f"Deleted {model.name} with {count} version{'' if count == 1 else 's'}",
            before={"last_number": model.last_number, "description": model.description, "tags": model.tags},
        )
        name = model.name
        tokens_forget_model(name=name, actor=actor)
        model.delete()
        check_references()
        write_auth_file()
        bucket_remove(name)
        if managed_repository().has_model(name):
            publish.delete_model(managed_repository(), name=name)


def _refuse_served(model: Model) -> None:
    if model.desired_state == DesiredState.LOADED:
        raise Conflict(f"model '{model.name}' is loaded; unload it before you delete it")
    wishes = model.wanted_in.exclude(environment__everything=True).values_list("environment__name", flat=True)
    if names := ", ".join(wishes):
        raise Conflict(f"model '{model.name}' is wanted in {names}; take it out there before you delete it")
    rows = ModelState.objects.filter(model_name=model.name).exclude(server__environment__driven=False)
    if any(row.state != ModelStatus.UNAVAILABLE or row.asleep for row in rows):
        raise Conflict(f"model '{model.name}' is still being unloaded; try again in a moment")
    publishing = Upload.objects.filter(model_name=model.name, state=UploadState.PUBLISHING)
    if publishing.exists() or model.versions.filter(state=VersionState.MOVING).exists():
        raise Conflict(f"a job is moving files of '{model.name}'; wait for it, or cancel it, then delete the model")


def last_number_ever(name: str) -> int:
    """Return the highest version number that deleted models of this name had, or 0. Numbers are never reused."""
    entries = AuditEntry.objects.filter(action="model.delete", model_name=name)
    numbers = (entry.before.get("last_number") for entry in entries)
    return max((number for number in numbers if isinstance(number, int)), default=0)
