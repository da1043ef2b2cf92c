"""Makes releases. Nothing else writes config.pbtxt and the rows of releases.

The text is written before the transaction is committed, so that a text that cannot be written makes no release. A process that
is killed in between leaves a text whose release was never made, and `text_take_back` overwrites it.
"""

import hashlib

from django.db.models import F

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.models import Model, ModelSync, Release, Rollout
from dashboard.releases import rollout_states
from dashboard.releases.bucket import bucket_point, bucket_point_soon
from dashboard.releases.storage import OnDisk, managed_repository, on_disk, write_config
from dashboard.shared.choices import DesiredState, ReleaseKind, VersionState
from dashboard.shared.exceptions import Conflict
from repository.config.document import NOTHING, Document, stamp_of
from repository.core.layout import CONFIG_FILE
from repository.files import publish


def release_make(
    *,
    model: Model,
    actor: Actor,
    kind: ReleaseKind,
    document: Document,
    summary: str,
    action: str = "",
    returns_to: Release | None = None,
    rollout: Rollout | None = None,
    write: bool = True,
    stamp: bool = True,
    begins: bool = False,
    load: bool = False,
) -> Release:
    """Make the next release and write its text, in the caller's transaction, which holds a lock on `model`.

    document: the configuration, which the caller has checked. action: the action of the audit entry; "" for no entry.
    rollout: the rollout of which this release is a step. Any other release ends the rollout under way, unless it keeps the
    rollout's policy.
    begins: make a new release even if clients notice no change of the text, because something else has changed. Otherwise such
    a row is a further text of the previous release.
    write: if False, the text with the number of this release is already on disk.
    stamp: if False, the release has no text, because the folder has none.
    load: whether the model is wanted from now on.
    """
    before = model.releases.first()
    number = before.number + 1 if before else 1
    text = document.stamped(number) if stamp else ""
    versions, answers, traffic = document.served(model.published_numbers())
    under_way, by = rollout or rollout_states.kept_by(model, document.traffic), actor.name
    release = Release.objects.create(
        model=model,
        number=number,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        versions=versions,
        aliases=dict(document.aliases),
        traffic=traffic,
        rollout=under_way,
        continues=None if begins or rollout is not None else _continued(before, document, versions),
        kind=kind,
        summary=summary[:300],
        returns_to=returns_to,
        created_by=actor.user,
        created_by_name=by,
    )
    release.document = document  # so that the text is not parsed again
    if under_way is None:
        rollout_states.overtaken(release=release, answers=answers, by=by)
    if action:
        audit_record(
            actor=actor,
            action=action,
            model=model,
            summary=f"{model.name}: {summary}",
            before=_audited(before) if before else {},
            after=_audited(release),
        )
    if load:
        model_want(model=model, document=document, actor=actor)
    if kind != ReleaseKind.ADOPT:  # the adopted files are recorded after this
        bucket_point(model)
    if write and stamp:
        write_config(model, release)
    generation_bump(model)
    return release


def _continued(before: Release | None, document: Document, versions: list[int]) -> Release | None:
    """Return the release that this text continues, because clients notice no change, or None if they notice a change."""
    if before is None or before.versions != versions or not before.document.same_meaning(document, versions):
        return None
    return before.begun


def text_take_back(model: Model) -> bool:
    """If the text on disk belongs to a release that was never made, write the newest release's text. Return whether it did.

    Numbers are consecutive, so a text on disk with the next number belongs to a transaction that was rolled back. The caller's
    transaction holds a lock on `model`, so that nobody makes that release now. The model is loaded again, because a server may
    have read the text meanwhile; the audit entry keeps the text that was overwritten.
    """
    newest, found = model.releases.first(), on_disk(model.name)
    if newest is None or not _never_made(found, newest):
        return False
    _take_back(model, newest, found)
    return True


def _take_back(model: Model, newest: Release, found: OnDisk) -> None:
    audit_record(
        actor=SYSTEM,
        action="release.take_back",
        model=model,
        summary=f"{model.name}: release {newest.number + 1} was broken off; config.pbtxt is that of release {newest.number}",
        before={"text": found.text},
        after={"release": newest.number},
    )
    if newest.text:
        write_config(model, newest)
    else:
        publish.remove_config(managed_repository(), name=model.name)
    generation_bump(model)


def changed_by_hand(model: Model, *, take_back: bool = False) -> str:
    """Return a clause that says that config.pbtxt was changed by hand, and what to do; "" if the file was not changed.

    The text of a release that was never made does not count. take_back: overwrite it, as `text_take_back` does.
    """
    newest, found = model.releases.first(), on_disk(model.name)
    mistake = f"{CONFIG_FILE} of '{model.name}' was changed on disk"
    if found.problem:
        return f"{mistake} ({found.problem}): mend it or overwrite it first"
    if found.text is None or found.text == (newest.text if newest else ""):
        return ""
    if newest is not None and _never_made(found, newest):
        if take_back:
            _take_back(model, newest, found)
        return ""
    same = Document.read(found.text).same_text(newest.document if newest else NOTHING)
    return "" if same else f"{mistake}: adopt that text or overwrite it first"


def refuse_drift(model: Model) -> None:
    """Raise Conflict if config.pbtxt was changed since it was adopted, because only a person may decide to overwrite it.

    The caller's transaction holds a lock on `model`. The text of a release that was never made is overwritten.
    """
    if problem := changed_by_hand(model, take_back=True):
        raise Conflict(problem)


def _never_made(found: OnDisk, newest: Release) -> bool:
    return found.text is not None and found.text != newest.text and stamp_of(found.text) == newest.number + 1


def model_want(*, model: Model, document: Document, actor: Actor) -> None:
    """Record that the model should be loaded, in the caller's transaction, which holds a lock on the model.

    document: the configuration that will be loaded. The models that an ensemble calls are wanted, too: the server loads them
    with the ensemble, and `watch` would unload one that nobody wants while the ensemble loads it.
    """
    if model.desired_state != DesiredState.LOADED:
        model.desired_state = DesiredState.LOADED
        model.save(update_fields=["desired_state"])
    seen, level = {model.name}, _called_by(document)
    while level := level - seen:
        seen |= level
        rows = Model.objects.filter(name__in=level)
        unwanted = rows.filter(desired_state=DesiredState.UNLOADED, versions__state=VersionState.PUBLISHED)
        for step in unwanted.distinct().order_by("name"):
            Model.objects.filter(pk=step.pk).update(desired_state=DesiredState.LOADED)
            bucket_point_soon(step)
            generation_bump(step)
            summary = f"Load {step.name}, which {model.name} calls"
            audit_record(actor=actor, action="model.load", model=step, summary=summary)
        newest = [step.releases.first() for step in rows]
        level = {name for release in newest if release is not None for name in _called_by(release.document)}


def _called_by(document: Document) -> set[str]:
    """Return the names of the models that an ensemble calls; none for any other model."""
    if "ensemble" not in document.text or document.mistake:
        return set()
    return {step.model_name for step in document.message.ensemble_scheduling.step}


def generation_bump(model: Model) -> None:
    """Raise the model's generation, by which `watch` sees that the servers need an update.

    Failures of earlier generations are forgotten.
    """
    Model.objects.filter(pk=model.pk).update(generation=F("generation") + 1)
    ModelSync.objects.filter(model=model).exclude(error="").update(error="", attempts=0)
    model.refresh_from_db(fields=["generation"])


def _audited(release: Release) -> dict[str, object]:
    return {
        "release": release.number,
        **({"continues": release.continues.number} if release.continues else {}),
        "versions": release.versions,
        "text": release.text,
    }
