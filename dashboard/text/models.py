"""Models: their description, their versions by number and digest, and config.pbtxt. Weights are no text.

A model that the installation lacks is adopted from its folder in the repository, which must hold the weights.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import OuterRef, Subquery

from dashboard.access.authorisation import Actor, Right
from dashboard.catalog.services import model_delete, model_describe
from dashboard.configuration.drift import model_adopt
from dashboard.configuration.needs import config_needs, refuse_unmet
from dashboard.configuration.services import config_apply, document_check
from dashboard.models import Model, Release, Version
from dashboard.releases.selectors import current_document, protected_versions
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import DesiredState, VersionState
from dashboard.shared.exceptions import Conflict, DashboardError, Invalid
from dashboard.shared.repository_errors import repository_errors
from dashboard.text.kinds import Change, Kind, Secrets
from dashboard.text.shapes import Record, Table
from dashboard.versions.moves import version_archive
from dashboard.versions.services import version_annotate
from repository.config.document import Document
from repository.config.model_config import SLIPWAY_PREFIX
from repository.config.traffic import PARAMETER as TRAFFIC
from repository.core.layout import check_name
from repository.files import drift

_MODEL = {"description": "", "tags": [], "loaded": False}


# -- models ------------------------------------------------------------------------------------------------------------
def _models() -> Mapping[str, Any]:
    rows = Model.objects.values_list("name", "description", "tags", "desired_state")
    return {
        name: {"description": description, "tags": tags, "loaded": state == DesiredState.LOADED}
        for name, description, tags, state in rows
    }


def _write_model(change: Change, actor: Actor, kept: Secrets) -> None:
    """Make, describe or remove a model. services.apply loads and unloads models when all of them are there."""
    if change.after is None:
        model_delete(model=change.model, actor=actor, confirm_name=change.scope)
        return
    model = model_adopt(name=change.scope, actor=actor) if change.before is None else change.model
    wanted = {**_MODEL, **change.after}
    model_describe(model=model, actor=actor, description=wanted["description"], tags=wanted["tags"])


@repository_errors()
def _refused_model(change: Change, actor: Actor) -> str:
    if change.after is None:
        return "it is loaded; unload it before it is removed" if change.before.get("loaded") else ""
    if change.before is not None:
        return ""
    there = managed_repository()
    if not there.has_model(check_name(change.scope)):
        return f"the weights are missing: copy the folder '{change.scope}' into the repository first"
    if change.after.get("loaded") and not there.versions(change.scope):
        return "the weights are missing: the folder of the repository has no version to load"
    return ""


def _model_rights(change: Change) -> tuple[Right, ...]:
    made = change.before is None
    return (Right.OPERATE, Right.UPLOAD_CODE) if made else (Right.OPERATE,)


def _clean(entry: dict[str, Any]) -> dict[str, Any]:
    tags = list(dict.fromkeys(tag for tag in entry.get("tags", []) if tag))
    return {
        **entry,
        **({"description": entry["description"][:10_000]} if "description" in entry else {}),
        **({"tags": tags} if tags else {}),
    }


MODELS = Kind(
    name="models",
    one="model",
    file="model.yaml",
    shape=Record({"description": str, "tags": [str], "loaded": bool}, _MODEL),
    read=_models,
    write=_write_model,
    of_model=True,
    normal=_clean,
    refused=_refused_model,
    rights=_model_rights,
)


# -- versions ----------------------------------------------------------------------------------------------------------
def _versions() -> Mapping[str, Any]:
    found: dict[str, dict[int, object]] = {name: {} for name in Model.objects.values_list("name", flat=True)}
    rows = Version.objects.filter(state=VersionState.PUBLISHED)
    for name, number, sha256, note in rows.values_list("model__name", "number", "sha256", "note"):
        found[name][number] = {"sha256": sha256, "note": note}
    return found


def _write_version(change: Change, actor: Actor, kept: Secrets) -> None:
    version = change.model.versions.filter(number=change.key).first()
    wanted = (change.after or {}).get("sha256", "")
    if version is None or (wanted and version.sha256 != wanted):
        raise Conflict(f"the weights of version {change.key} were changed meanwhile")
    if change.after is None:
        version_archive(version=version, actor=actor)
    else:
        version_annotate(version=version, actor=actor, note=change.after.get("note", ""))


@repository_errors()
def _refused_version(change: Change, actor: Actor) -> str:
    if change.after is None:
        return protected_versions(change.model).get(change.key, "")
    wanted, name = change.after["sha256"], f"{change.scope}/{change.key}"
    if change.new_model:
        there = managed_repository()
        if not there.has_model(change.scope) or not there.has_version(change.scope, change.key):
            return f"the weights are missing: copy the folder '{name}' into the repository first"
        has = drift.manifest(there.version_dir(change.scope, change.key)).sha256
    elif change.before is None:
        row = change.model.versions.filter(number=change.key).first()
        if row is not None:
            return f"the version is {row.state}; restore it first"
        return f"the weights are missing: upload them, or copy the folder '{name}' into the repository and adopt it"
    else:
        has = change.before["sha256"]
    return "" if has == wanted else f"the weights are others: their digest is {has}, not {wanted[:64]}"


VERSIONS = Kind(
    name="versions",
    one="version",
    file="versions.yaml",
    shape=Table(Record({"sha256": str, "note": str}, {"note": ""}), key=int),
    read=_versions,
    write=_write_version,
    of_model=True,
    entries=True,
    normal=lambda entry: {**entry, "note": entry["note"][:10_000]} if "note" in entry else entry,
    refused=_refused_version,
)


# -- configurations ----------------------------------------------------------------------------------------------------
def _configurations() -> Mapping[str, Any]:
    newest = Release.objects.filter(model=OuterRef("pk")).order_by("-number").values("text")[:1]
    rows = Model.objects.annotate(text=Subquery(newest)).values_list("name", "text")
    return {name: text for name, text in rows if text}


def _normal_text(text: str) -> str:
    """Return a config.pbtxt without the number of its release, and without the traffic policy of a rollout, which is an act."""
    document = Document.read(text)
    if f"{SLIPWAY_PREFIX}{TRAFFIC}" in document.text:
        document = document.without_traffic()
    return document.text.rstrip("\n") + "\n"


def _write_configuration(change: Change, actor: Actor, kept: Secrets) -> None:
    model, document = change.model, Document(change.after)
    if not document.same_text(current_document(model)):  # the folder that was just adopted usually has this text
        config_apply(model=model, document=document, actor=actor)


@repository_errors()
def _refused_configuration(change: Change, actor: Actor) -> str:
    document = Document(change.after)
    model = None if change.new_model else change.model
    try:
        document_check(document=document, model=model, model_name=change.scope)
        if model is not None:
            needs = config_needs(model_name=model.name, current=current_document(model), document=document)
            refuse_unmet(needs, actor.rights())
    except Invalid as error:
        found = [] if document.mistake else error.problems  # the sentence about a mistake names its line
        line = next((problem.line for problem in found if problem.severity == "error"), 0)
        return f"line {line}: {error.message}" if line else error.message
    except DashboardError as error:
        return error.message
    return ""


CONFIGURATIONS = Kind(
    name="configurations",
    one="configuration",
    file="config.pbtxt",
    shape=None,
    read=_configurations,
    write=_write_configuration,
    of_model=True,
    normal=_normal_text,
    refused=_refused_configuration,
)
