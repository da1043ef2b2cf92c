"""Makes a version live, goes back to a release, names versions. Archiving and restoring: moves.py."""

from collections.abc import Mapping

from django.db import transaction
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.configuration.needs import config_needs, refuse_unmet
from dashboard.configuration.services import document_check
from dashboard.models import Model, Release, Version
from dashboard.releases.bucket import bucket_point_soon, bucket_transaction
from dashboard.releases.gates import refuse_at_gates
from dashboard.releases.going_back import document_to_return, going_back
from dashboard.releases.rollout_rules import refuse_other_default
from dashboard.releases.selectors import current_document, fitting_document, newest_release, way_back
from dashboard.releases.services import refuse_drift, release_make
from dashboard.shared.choices import ReleaseKind, VersionState
from dashboard.shared.exceptions import Conflict, Invalid, NamesMoved
from dashboard.shared.repository_errors import repository_errors
from repository.config.document import Document
from repository.config.release import DEFAULT_ALIAS, aliases_problem


@repository_errors()
def release_promote(
    *, version: Version, actor: Actor, document: Document | None = None, load: bool = True, override: str = ""
) -> Release:
    """Make a release in which this version answers, with the present configuration or another. Only this version and versions
    with an alias are served.

    document: the configuration, such as the result of `fitting_document`. Its version policy is replaced, and the model's
    present aliases are kept. load: whether the model is loaded, too. override: why the version goes live although it does not
    keep the model's budget.
    Raises Conflict if the version is not published, does not keep the budget, or the file was changed by hand. Raises Invalid
    if a server would refuse the text with the version's file. Raises Forbidden if the actor lacks a right that the text needs.
    """
    require(actor, Right.OPERATE)
    with bucket_transaction():
        model = Model.locked(version.model_id)
        version.refresh_from_db()
        if version.state != VersionState.PUBLISHED:
            hint = "restore it first" if version.state == VersionState.ARCHIVED else "wait until that is done"
            raise Conflict(f"version {version.number} of '{model.name}' is {version.state}; {hint}")
        refuse_drift(model)
        before, there = current_document(model), model.published_numbers()
        chosen = before if document is None else document.with_aliases(before.aliases)
        final = chosen.without_traffic().live([version.number], there)
        if before.answers(there) != version.number:
            refuse_at_gates(version=version, document=final, actor=actor, override=override)
        if document is not None:
            document_check(model=model, document=final, with_files=False)
            refuse_unmet(config_needs(model_name=model.name, current=before, document=final), actor.rights())
        _refuse_misfit(version, final, chosen=document is not None)
        return release_make(
            model=model,
            actor=actor,
            kind=ReleaseKind.PROMOTE,
            document=final,
            summary=f"Made version {version.number} live",
            action="release.promote",
            load=load,
        )


def _refuse_misfit(version: Version, document: Document, *, chosen: bool) -> None:
    """Raise Invalid if a server would refuse the document with the version's file. chosen: whether the caller chose it."""
    try:
        document_check(model=version.model, document=document)
    except Invalid as error:
        fitting = fitting_document(version) or document
        if chosen or fitting.live([version.number], version.model.published_numbers()).same_text(document):
            raise
        message = f"{error.message}; make version {version.number} live with the configuration that fits it"
        raise Invalid(message, error.problems) from None


@repository_errors()
def release_go_back(*, model: Model, actor: Actor, release: Release | None = None) -> Release:
    """Make a release with the versions and the configuration of an earlier one, and load the model.

    release: by default the one that `way_back` returns.
    Raises Conflict if there is no such release, if going back is impossible (see `going_back`), or if the file was changed by
    hand. Raises Forbidden if the actor lacks a right that the text needs.
    """
    require(actor, Right.OPERATE)
    with bucket_transaction():
        model = Model.locked(model.pk)
        target = release or way_back(model)
        if target is None:
            raise Conflict(f"model '{model.name}' has no earlier release to go back to")
        refuse_drift(model)
        found = going_back(model, target)
        if found.refusals:
            raise Conflict(f"release {target.number} of '{model.name}' cannot come back: {'; '.join(found.refusals)}")
        before, document = current_document(model), document_to_return(model, target)
        refuse_unmet(config_needs(model_name=model.name, current=before, document=document), actor.rights())
        return release_make(
            model=model,
            actor=actor,
            kind=ReleaseKind.GO_BACK,
            document=document,
            summary=f"Went back to release {target.number}",
            action="release.go_back",
            returns_to=target,
            load=True,
        )


@repository_errors()
def aliases_set(*, model: Model, aliases: Mapping[str, int], actor: Actor, base_release: int | None = None) -> Release:
    """Make a release in which the versions have these aliases and no others; return the newest one if they already have them.

    Versions that get an alias are served, too. The version of the alias `default` answers requests that name no version; if the
    alias is not given, the version that answers them now continues to answer them. base_release: the number of the release
    whose aliases the person saw; later changes of other aliases are kept.
    Raises Invalid if an alias is not valid, or there is no such published version. Raises NamesMoved if somebody has changed
    the same aliases since that release.
    """
    require(actor, Right.OPERATE)
    if wrong := aliases_problem({**aliases}, ModelConfig()):
        raise Invalid(wrong)
    with bucket_transaction():
        model = Model.locked(model.pk)
        newest = newest_release(model)
        if newest is None:
            raise Conflict(f"model '{model.name}' has no version to name")
        if base_release not in (None, newest.number):
            base = model.releases.filter(number=base_release).first()
            aliases = _with_theirs(newest, base.aliases if base else {}, aliases)
        there = model.published_numbers()
        missing = sorted(set(aliases.values()) - set(there))
        if missing:
            raise Invalid(f"there is no published version {missing[0]} of '{model.name}'; name one that is published")
        refuse_drift(model)
        versions = sorted({*newest.versions, *aliases.values()})
        given = _with_default(newest, versions, dict(aliases))
        if given == newest.aliases and versions == newest.versions:
            return newest
        before = newest.document
        document = (before if versions == newest.versions else before.pinned(versions, there)).with_aliases(given)
        refuse_other_default(model, before, document)
        if (answers := document.answers(there)) != before.answers(there):
            refuse_at_gates(version=model.versions.get(number=answers), document=document, actor=actor)
        document_check(model=model, document=document)
        return release_make(
            model=model,
            actor=actor,
            kind=ReleaseKind.ALIASES,
            document=document,
            summary=_moved(newest.aliases, given),
            action="release.aliases",
        )


def _with_theirs(newest: Release, base: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """Return the wanted aliases, with the changes that others have made to other aliases since `base`."""
    theirs, merged, both = newest.aliases, dict(newest.aliases), []
    for name in sorted({*base, *asked}):
        wanted = asked.get(name)
        if wanted == base.get(name):
            continue
        if theirs.get(name) not in (base.get(name), wanted):
            both.append(f"'{name}' is {f'version {theirs[name]}' if name in theirs else 'gone'} by now")
        merged.pop(name, None)
        if wanted is not None:
            merged[name] = wanted
    if both:
        message = (
            f"{newest.created_by_name} made release {newest.number} meanwhile: {', '.join(both)}; look, and send again"
        )
        raise NamesMoved(message, merged=merged, current_release=newest.number)
    return merged


def _with_default(newest: Release, versions: list[int], aliases: dict[str, int]) -> dict[str, int]:
    """Return the aliases, with a `default` if another version would begin to answer without it."""
    if DEFAULT_ALIAS in aliases or not newest.versions:
        return aliases
    answers = newest.aliases.get(DEFAULT_ALIAS, max(newest.versions))
    return aliases if answers == max(versions) else {**aliases, DEFAULT_ALIAS: answers}


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    changed = [f"{name} is version {number}" for name, number in sorted(after.items()) if before.get(name) != number]
    changed += [f"{name} is gone" for name in sorted(before.keys() - after.keys())]
    return f"Named versions: {', '.join(changed)}" if changed else "Named versions"


def version_annotate(*, version: Version, actor: Actor, note: str) -> Version:
    require(actor, Right.OPERATE)
    note = note.strip()[:10_000]
    with transaction.atomic():
        model = Model.locked(version.model_id)
        version.refresh_from_db()
        before = version.note
        if before != note:
            version.note = note
            version.save(update_fields=["note"])
            bucket_point_soon(model)
            audit_record(
                actor=actor,
                action="version.annotate",
                model=model,
                summary=f"Noted on version {version.number} of {model.name}",
                before={"note": before},
                after={"note": note},
            )
    return version
