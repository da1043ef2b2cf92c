"""Previews and applies texts of config.pbtxt, and returns to an earlier one.

What is stored is the text as a person wrote it; the form (fields.py) is another view of it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db import transaction
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.catalog.releases import generation_bump, release_record, text_for_served
from dashboard.catalog.selectors import current_text
from dashboard.catalog.storage import disk_text, managed_repository, remember_config
from dashboard.configuration.fields import FieldError, Fields, apply_fields, field_for, fields_of
from dashboard.configuration.needs import Need, config_needs, refuse_unmet, rights_of
from dashboard.models import ConfigRevision, Model
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Conflict, Invalid, Problem
from dashboard.shared.repository_errors import repository_errors
from repository.config import edit as config_edit
from repository.config import model_config, reload_rule, validation, version_policy
from repository.config import text as config_text
from repository.core.errors import InvalidConfig
from repository.core.layout import CONFIG_FILE
from repository.files import publish

EFFECTS = {
    "none": "Nothing changes.",
    "in_place": "Applies in place: no reload, no request waits.",
    "versions": "Loads and unloads versions; those that stay are not touched.",
    "reload": "Reloads the model beside the one that serves, then switches; no request fails.",
}


@dataclass(frozen=True, slots=True)
class ConfigPreview:
    """What a text, or form fields, would be as a configuration, and what applying it would do."""

    text: str
    fields: Fields
    problems: list[Problem] = field(default_factory=list)
    diff: str = ""  # unified, against the current text
    changed_fields: list[str] = field(default_factory=list)  # outermost fields of the configuration
    dropped_comments: list[str] = field(default_factory=list)
    effect: str = "none"  # a key of EFFECTS
    needs: list[Need] = field(default_factory=list)  # rights that applying it takes beside the right to operate

    @property
    def valid(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def effect_sentence(self) -> str:
        return EFFECTS[self.effect]


@repository_errors()
def config_preview(
    *, model_name: str, base: str | None = None, text: str | None = None, fields: Mapping[str, object] | None = None
) -> ConfigPreview:
    """Return what a text, or form fields laid over `base`, would be as a configuration, and what applying it would do.

    base: the text that is edited, by default the model's current one. The diff is against the current text; for a model that
    does not exist yet against `base`. A configuration with mistakes raises nothing: they are in `problems`.
    """
    model = Model.objects.filter(name=model_name).first()
    current = current_text(model) if model else (base or "")
    base = current if base is None else base
    problems: list[Problem] = []
    if text is None:
        text, problems = _from_fields(base, fields or {})
    config, more = _read(text)
    if config is None:
        return ConfigPreview(text=text, fields={}, problems=problems + more, diff=_diff(current, text), effect="reload")
    problems += more or _check(text, config, model, model_name)
    changed, effect = _change(current, config)
    return ConfigPreview(
        text=text,
        fields=fields_of(config),
        problems=problems,
        diff=_diff(current, text),
        changed_fields=changed,
        dropped_comments=config_text.dropped_comments(base, text),
        effect=effect,
        needs=config_needs(model_name=model_name, current=current, text=text) if model else [],
    )


@repository_errors()
def config_apply(
    *, model: Model, text: str, actor: Actor, summary: str = "", base_revision: int | None = None
) -> ConfigRevision:
    """Validate a text, write it to config.pbtxt, and return its revision; the current one where the text is the same.

    base_revision: the number of the revision that the person edited. Invalid, with its problems: a server would refuse the
    text. Conflict: there is a newer revision than `base_revision`, or the file was changed by hand. Forbidden: the actor lacks
    a right that the change takes.
    """
    require(actor, Right.OPERATE)
    text_check(model=model, text=text)
    with transaction.atomic():
        model = Model.objects.select_for_update().get(pk=model.pk)
        current = model.revisions.first()
        _refuse_outdated(model, current, base_revision)
        if current is not None and current.text == text:
            return current
        before = current.text if current else ""
        refuse_unmet(config_needs(model_name=model.name, current=before, text=text), rights_of(actor))
        return config_write(
            model=model, text=text, actor=actor, summary=summary or _summary(current, text), action="config.apply"
        )


@repository_errors()
def config_revert(*, revision: ConfigRevision, actor: Actor, base_revision: int | None = None) -> ConfigRevision:
    """Apply an earlier text as a new revision; errors as in config_apply.

    A version that was never served is not served by that: see releases.text_for_served.
    """
    require(actor, Right.OPERATE)
    summary = f"Returned to configuration {revision.number}"
    with transaction.atomic():
        model = Model.objects.select_for_update().get(pk=revision.model_id)
        text = text_for_served(model, revision.text)
        return config_apply(model=model, text=text, actor=actor, summary=summary, base_revision=base_revision)


def config_write(*, model: Model, text: str, actor: Actor, summary: str, action: str) -> ConfigRevision:
    """Write the file, revision, audit entry and release, in the caller's transaction, which holds a lock on `model`."""
    before = model.revisions.first()
    revision = revision_add(model=model, text=text, actor=actor, summary=summary)
    audit_record(
        actor=actor,
        action=action,
        model=model,
        summary=f"{model.name}: {summary}",
        before={"revision": before.number, "text": before.text} if before else {},
        after={"revision": revision.number, "text": text},
    )
    publish.write_config(managed_repository(), name=model.name, text=text)
    remember_config(model, text)
    release_record(model=model, actor=actor, reason=summary)
    generation_bump(model)
    return revision


def revision_add(*, model: Model, text: str, actor: Actor, summary: str) -> ConfigRevision:
    """Make the row of the next revision."""
    newest = model.revisions.first()
    return ConfigRevision.objects.create(
        model=model,
        number=newest.number + 1 if newest else 1,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        summary=summary[:300],
        created_by=actor.user,
        created_by_name=actor.name,
    )


def text_check(*, text: str, model: Model | None = None, model_name: str = "") -> ModelConfig:
    """Return the configuration that a text is. Invalid, with its problems: a server would refuse it."""
    name = model.name if model else model_name
    config, problems = _read(text)
    if config is not None:
        problems = _check(text, config, model, name)
    errors = [problem for problem in problems if problem.severity == "error"]
    if config is None or errors:
        where = f"{errors[0].path}: " if config is not None and errors[0].path else ""
        raise Invalid(f"the configuration is not valid: {where}{errors[0].message}", problems=problems)
    return config


def _from_fields(base: str, fields: Mapping[str, object]) -> tuple[str, list[Problem]]:
    """Return the text of `base` with the fields laid over it; `base` itself, and the problem, where a field is wrong."""
    config, problems = _read(base)
    if config is None:
        return base, problems
    try:
        apply_fields(config, fields)
    except FieldError as error:
        return base, [Problem(error.message, field=error.field)]
    except (ValueError, TypeError):
        return base, [Problem("a number in the form is out of range")]
    return config_edit.apply(base, config), []


def _read(text: str) -> tuple[ModelConfig | None, list[Problem]]:
    if len(text.encode(errors="replace")) > model_config.MAX_CONFIG_BYTES:
        return None, [Problem("the text is larger than a configuration may be")]
    try:
        return model_config.parse(text), []
    except InvalidConfig as error:
        return None, [Problem(error.message, field=field_for(error.field), path=error.field, line=error.line)]
    except UnicodeEncodeError:
        return None, [Problem("the text is not UTF-8")]


def _check(text: str, config: ModelConfig, model: Model | None, name: str) -> list[Problem]:
    """Return broken rules as errors, and versions that the policy names and that are not published as a warning."""
    problems = [
        Problem(found.message, field_for(found.field), found.field, _line(text, found.field))
        for found in validation.validate(config, name=name, complete=False)
    ]
    missing = version_policy.missing(config, published_numbers(model)) if model else []
    if missing:
        path = "version_policy.specific.versions"
        numbers = ", ".join(map(str, missing))
        message = f"there is no published version {numbers}"
        line = _line(text, path)
        problems.append(Problem(message, "version_policy_specific", path, line, severity="warning"))
    return problems


def published_numbers(model: Model) -> list[int]:
    return list(model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))


def _change(current: str, new: ModelConfig) -> tuple[list[str], str]:
    """Return the outermost fields that differ, and what applying them does (a key of EFFECTS)."""
    old, _ = _read(current)
    return ([], "reload") if old is None else (changed_fields(old, new), reload_rule.effect(old, new))


def _summary(current: ConfigRevision | None, text: str) -> str:
    changed, _ = _change(current.text if current else "", model_config.parse(text))
    return f"Changed {', '.join(changed)}" if changed else "Changed the text, not its meaning"


def _diff(old: str, new: str) -> str:
    return config_text.diff(old, new, old_name="current", new_name="new")


def _line(text: str, path: str) -> int:
    place = config_text.locate(text, path)
    return place[0] if place else 0


def changed_fields(old: ModelConfig, new: ModelConfig) -> list[str]:
    """Return the outermost fields that differ, in the order of model_config.proto."""
    before, after = ({field.name: value for field, value in config.ListFields()} for config in (old, new))
    names = [field.name for field in ModelConfig.DESCRIPTOR.fields]
    return [name for name in names if before.get(name) != after.get(name)]


def _refuse_outdated(model: Model, current: ConfigRevision | None, base_revision: int | None) -> None:
    if base_revision is not None and (current.number if current else 0) != base_revision:
        raise Conflict(
            f"configuration {base_revision} was edited, but {current.number if current else 0} is the current one by now"
        )
    refuse_drift(model, current)


def refuse_drift(model: Model, current: ConfigRevision | None) -> None:
    """Raise Conflict where the file is not what was adopted last, for only a person may have it overwritten."""
    on_disk = disk_text(model.name)
    if on_disk is not None and on_disk != (current.text if current else ""):
        raise Conflict(f"{CONFIG_FILE} of '{model.name}' was changed on disk: adopt that text or overwrite it first")
