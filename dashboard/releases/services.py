"""Makes releases: the only writer of config.pbtxt and of their rows.

The text is written before the transaction is committed, so that a release that cannot be written is none. Who is killed in
between leaves a text whose release was never made; `text_take_back` takes it back.
"""

import hashlib

from django.db.models import F

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.models import Model, ModelSync, Release, Rollout
from dashboard.releases import rollout_states
from dashboard.releases.storage import disk_problem, disk_text, managed_repository, remember_config
from dashboard.releases.texts import aliases_in, answering, chosen_versions, shares_in, traffic_in
from dashboard.shared.choices import ReleaseKind
from repository.config.meaning import same_meaning
from repository.config.release_stamp import same_text, stamp_of, stamped
from repository.core.layout import CONFIG_FILE
from repository.files import publish


def release_make(
    *,
    model: Model,
    actor: Actor,
    kind: ReleaseKind,
    text: str,
    summary: str,
    action: str = "",
    returns_to: Release | None = None,
    rollout: Rollout | None = None,
    write: bool = True,
    begins: bool = False,
) -> Release:
    """Make the next release, and write its text; in the caller's transaction, which holds a lock on `model`.

    text: checked by the caller; whatever stamp it carries, it gets its own. action: of the audit entry, "" for none.
    rollout: the one whose step it is; any other release ends the rollout that is under way, unless it keeps to its policy.
    Where clients meet the same as before, the row begins no release, but is another text of the one before; `begins`: it is one
    all the same, for what else has changed.
    write: False where the text lies on disk already, as `next_text` stamped it, or is to be left away.
    """
    before = model.releases.first()
    number = before.number + 1 if before else 1
    text = stamped(text, number) if write else text
    versions, aliases = chosen_versions(model, text), aliases_in(text)
    answers = answering(versions, aliases)
    under_way = rollout or rollout_states.kept_by(model, traffic_in(text))
    release = Release.objects.create(
        model=model,
        number=number,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        versions=versions,
        aliases=aliases,
        traffic=shares_in(text, answers),
        rollout=under_way,
        continues=None if begins or rollout is not None else _continued(before, text, versions),
        kind=kind,
        summary=summary[:300],
        returns_to=returns_to,
        created_by=actor.user,
        created_by_name=actor.name,
    )
    if under_way is None:
        rollout_states.overtaken(release=release, answers=answers, by=actor.name)
    if action:
        audit_record(
            actor=actor,
            action=action,
            model=model,
            summary=f"{model.name}: {summary}",
            before=_told(before) if before else {},
            after=_told(release),
        )
    if write:
        publish.write_config(managed_repository(), name=model.name, text=text)
        remember_config(model, text)
    generation_bump(model)
    return release


def _continued(before: Release | None, text: str, versions: list[int]) -> Release | None:
    """Return the release that goes on with this text, where clients meet nothing else than before."""
    same = before is not None and before.versions == versions and same_meaning(before.text, text, versions)
    return before.begun if before is not None and same else None


def next_text(model: Model, text: str) -> str:
    """Return a text as the next release of a model will have it."""
    newest = model.releases.first()
    return stamped(text, newest.number + 1 if newest else 1)


def text_take_back(model: Model) -> bool:
    """Write the newest release's text over that of a release that was never made; return whether there was one.

    Numbers are given in turn, so the stamp on disk tells: the next number was written, and its transaction came to nothing.
    In the caller's transaction, which holds a lock on `model`: nobody is making that release now. The model is loaded again,
    for a server may have read the text meanwhile; what is written over stands in the audit entry.
    """
    newest, on_disk = model.releases.first(), disk_text(model.name)
    if newest is None or on_disk is None or not _never_made(on_disk, newest):
        return False
    audit_record(
        actor=SYSTEM,
        action="release.take_back",
        model=model,
        summary=f"{model.name}: release {newest.number + 1} was broken off; config.pbtxt is that of release {newest.number}",
        before={"text": on_disk},
        after={"release": newest.number},
    )
    if newest.text:
        publish.write_config(managed_repository(), name=model.name, text=newest.text)
    else:
        publish.remove_config(managed_repository(), name=model.name)
    generation_bump(model)
    return True


def changed_by_hand(model: Model) -> str:
    """Return that config.pbtxt is not what was adopted last, and what to do first, as a clause; "" where it is.

    What `text_take_back` takes back nobody changed by hand.
    """
    told = f"{CONFIG_FILE} of '{model.name}' was changed on disk"
    if problem := disk_problem(model.name):
        return f"{told} ({problem}): mend it or overwrite it first"
    newest, on_disk = model.releases.first(), disk_text(model.name)
    if on_disk is None or same_text(on_disk, newest.text if newest else ""):
        return ""
    if newest is not None and _never_made(on_disk, newest):
        return ""
    return f"{told}: adopt that text or overwrite it first"


def _never_made(on_disk: str, newest: Release) -> bool:
    return stamp_of(on_disk) == newest.number + 1


def generation_bump(model: Model) -> None:
    """Raise the model's generation, by which `watch` sees that the servers have to be told something.

    What failed of the generation before says nothing of this one.
    """
    Model.objects.filter(pk=model.pk).update(generation=F("generation") + 1)
    ModelSync.objects.filter(model=model).exclude(error="").update(error="", attempts=0)
    model.refresh_from_db(fields=["generation"])


def _told(release: Release) -> dict[str, object]:
    return {
        "release": release.number,
        **({"continues": release.continues.number} if release.continues else {}),
        "versions": release.versions,
        "text": release.text,
    }
