"""Which version is served: make live, roll back. Archiving and restoring: moves.py."""

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.catalog.releases import chosen_versions
from dashboard.catalog.selectors import current_text, roll_back_target
from dashboard.configuration.services import config_write, refuse_drift
from dashboard.models import ConfigRevision, Model, Version
from dashboard.shared.choices import DesiredState, VersionState
from dashboard.shared.exceptions import Conflict
from dashboard.shared.repository_errors import repository_errors
from repository.config import edit as config_edit
from repository.config import model_config, version_policy


@repository_errors()
def version_make_live(*, version: Version, actor: Actor, load: bool = True) -> ConfigRevision:
    """Serves this version alone: version_policy { specific { versions: [N] } } as a configuration revision."""
    summary = f"Made version {version.number} live"
    return _serve(version=version, actor=actor, load=load, summary=summary, action="version.make_live")


@repository_errors()
def version_roll_back(*, model: Model, actor: Actor, version: Version | None = None) -> ConfigRevision:
    """Returns to `version`, by default to the one that was served before the present one."""
    target = version or roll_back_target(model)
    if target is None:
        raise Conflict(f"model '{model.name}' has no earlier version to roll back to")
    summary = f"Rolled back to version {target.number}"
    return _serve(version=target, actor=actor, load=True, summary=summary, action="version.roll_back")


def _serve(*, version: Version, actor: Actor, load: bool, summary: str, action: str) -> ConfigRevision:
    require(actor, Right.OPERATE)
    with transaction.atomic():
        model = Model.objects.select_for_update().get(pk=version.model_id)
        version.refresh_from_db()
        if version.state != VersionState.PUBLISHED:
            hint = "restore it first" if version.state == VersionState.ARCHIVED else "wait until that is done"
            raise Conflict(f"version {version.number} of '{model.name}' is {version.state}; {hint}")
        refuse_drift(model, model.revisions.first())
        if load:
            Model.objects.filter(pk=model.pk).update(desired_state=DesiredState.LOADED)
            model.desired_state = DesiredState.LOADED
        text = pinned_text(model, current_text(model), version.number)
        # Even where the text stays the same there is a revision: it says who chose this version, and when.
        return config_write(model=model, text=text, actor=actor, summary=summary, action=action)


def pinned_text(model: Model, text: str, number: int) -> str:
    """The text with a policy that serves this version alone; as it is where it does so already."""
    if chosen_versions(model, text) == [number] and version_policy.describe(model_config.parse(text)) != "all versions":
        return text
    config = model_config.parse(text)
    version_policy.set_specific(config, [number])
    return config_edit.apply(text, config)


def version_annotate(*, version: Version, actor: Actor, note: str) -> Version:
    require(actor, Right.OPERATE)
    before, note = version.note, note.strip()[:10_000]
    with transaction.atomic():
        Version.objects.filter(pk=version.pk).update(note=note)
        audit_record(
            actor=actor,
            action="version.annotate",
            model=version.model,
            summary=f"Noted on version {version.number} of {version.model.name}",
            before={"note": before},
            after={"note": note},
        )
    version.refresh_from_db()
    return version
