"""Previews and applies texts of config.pbtxt.

What is stored is the text as a person wrote it, with the stamp of its release; the form (fields.py) is another view of it.
Whatever is previewed, compared or shown has no stamp: a person's text may carry one, and it counts for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db import transaction
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.access.authorisation import Actor, Right, require
from dashboard.configuration.field_values import FieldError
from dashboard.configuration.fields import Fields, apply_fields, field_for, fields_of
from dashboard.configuration.model_files import Arriving, arriving_misfits, served_misfits
from dashboard.configuration.needs import Need, config_needs, refuse_unmet, rights_of
from dashboard.models import Model, Release
from dashboard.releases.rollout_rules import same_but_weight, traffic_kept
from dashboard.releases.selectors import current_text, newest_release
from dashboard.releases.services import changed_by_hand, release_make, text_take_back
from dashboard.releases.texts import published_numbers
from dashboard.shared.choices import ReleaseKind
from dashboard.shared.client_gone import go_on
from dashboard.shared.exceptions import Conflict, Invalid, Outdated, Problem
from dashboard.shared.repository_errors import repository_errors
from repository.config import edit as config_edit
from repository.config import model_config, reload_rule, validation, version_policy
from repository.config import text as config_text
from repository.config.file_check import Misfit
from repository.config.lines import unified
from repository.config.release import unserved_alias
from repository.config.release_stamp import same_text, unstamped
from repository.config.text import Places
from repository.config.traffic import unserved_candidate
from repository.config.validation_parameters import unknown_parameters
from repository.core.errors import InvalidConfig
from repository.files.foreign_formats import stand_in_for_text

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
    *,
    model_name: str,
    base: str | None = None,
    text: str | None = None,
    fields: Mapping[str, object] | None = None,
    arriving: Arriving | None = None,
) -> ConfigPreview:
    """Return what a text, or form fields laid over `base`, would be as a configuration, and what applying it would do.

    base: the text that is edited, by default the model's current one. The diff is against the current text; for a model that
    does not exist yet against `base`. A configuration with mistakes raises nothing: they are in `problems`. arriving: the
    version that is to be published with it, whose file alone it must fit: which others go on to be served is not decided yet.
    """
    model = Model.objects.filter(name=model_name).first()
    current = current_text(model) if model else (base or "")
    base = current if base is None else base
    problems: list[Problem] = []
    base = unstamped(base)
    if text is None:
        text, problems = _from_fields(base, fields or {})
    text = unstamped(text)
    config, more = _read(text)
    if config is None:
        return ConfigPreview(text=text, fields={}, problems=problems + more, diff=_diff(current, text), effect="reload")
    there = published_numbers(model) if model else []
    go_on()
    problems += more or _check(text, config, model, model_name, there, arriving)
    if not problems:
        go_on()
        misfits = arriving_misfits(arriving, config) if arriving else served_misfits(model, config, there)
        problems = _files_check(text, misfits)
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
    *, model: Model, text: str, actor: Actor, summary: str = "", base_release: int | None = None
) -> Release:
    """Validate a text, make a release of it, and return that; the newest one where the text is the same.

    base_release: the number of the release whose text the person edited. Invalid, with its problems: a server would refuse the
    text. Outdated: another text came since. Conflict: the file was changed by hand, or the text changes what a rollout decides.
    Forbidden: the actor lacks a right that the change takes.
    """
    require(actor, Right.OPERATE)
    text = unstamped(text)
    text_check(model=model, text=text, with_files=False)
    with transaction.atomic():
        model = Model.locked(model.pk)
        refuse_outdated(model=model, base_release=base_release)
        refuse_drift(model)
        current = newest_release(model)
        before = unstamped(current.text) if current else ""
        text = traffic_kept(model, before, text)
        if current is not None and same_text(current.text, text):
            return current
        refuse_unmet(config_needs(model_name=model.name, current=before, text=text), rights_of(actor))
        text_check(model=model, text=text)
        return release_make(
            model=model,
            actor=actor,
            kind=ReleaseKind.CONFIGURE,
            text=text,
            summary=summary or _summary(before, text),
            action="config.apply",
        )


def text_check(
    *,
    text: str,
    model: Model | None = None,
    model_name: str = "",
    arriving: Arriving | None = None,
    with_files: bool = True,
) -> ModelConfig:
    """Return the configuration that a text is. Invalid, with its problems: a server would refuse it.

    arriving: the version that is to be published with it. with_files: whether it must fit the files of the versions that it
    would serve.
    """
    name = model.name if model else model_name
    config, problems = _read(text)
    if config is not None:
        there = published_numbers(model) if model else []
        problems = _check(text, config, model, name, there, arriving)
        if with_files and not problems:
            problems = _files_check(text, served_misfits(model, config, there, arriving))
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
    go_on()
    if len(text.encode(errors="replace")) > model_config.MAX_CONFIG_BYTES:
        return None, [Problem("the text is larger than a configuration may be")]
    try:
        return model_config.parse(text), []
    except InvalidConfig as error:
        if downloaded := stand_in_for_text(text):
            return None, [Problem(downloaded.sentence)]
        return None, [Problem(error.message, field=field_for(error.field), path=error.field, line=error.line)]
    except UnicodeEncodeError:
        return None, [Problem("the text is not UTF-8")]


def fields_in(text: str) -> Fields:
    """Return the fields of a text; none where it is no configuration."""
    config, _ = _read(text)
    return {} if config is None else fields_of(config)


def _check(
    text: str,
    config: ModelConfig,
    model: Model | None,
    name: str,
    published: list[int],
    arriving: Arriving | None = None,
) -> list[Problem]:
    """Return broken rules as errors, and versions that the policy names and that are not published as a warning.

    published: the numbers of the model's versions. A name of a version that would not be served is an error, for a server
    refuses it.
    """
    places = Places(text)
    problems = [
        Problem(found.message, field_for(found.field), found.field, _line(places, found.field))
        for found in validation.validate(config, name=name, complete=False)
    ]
    problems += [
        Problem(found.message, field_for(found.field), found.field, _line(places, found.field), severity="warning")
        for found in unknown_parameters(config)
    ]
    there = [*published, *([arriving.number] if arriving else [])] if model else []
    missing = version_policy.missing(config, there) if model else []
    if missing:
        path = "version_policy.specific.versions"
        numbers = ", ".join(map(str, missing))
        message = f"there is no published version {numbers}"
        line = _line(places, path)
        problems.append(Problem(message, "version_policy_specific", path, line, severity="warning"))
    if there and not any(problem.severity == "error" for problem in problems):
        # Publishing sees to it that what has a name is served.
        served = there if arriving else version_policy.select(config, there)
        for parameter, unserved in (("aliases", unserved_alias), ("traffic", unserved_candidate)):
            if wrong := unserved(config, served):
                path = f'parameters["slipway.{parameter}"]'
                problems.append(Problem(wrong, field_for(path), path, _line(places, path)))
    return problems


def _files_check(text: str, misfits: list[Misfit]) -> list[Problem]:
    """Return what does not fit the model files as errors, and what may not fit them as warnings."""
    places = Places(text)
    return [
        Problem(
            message,
            field_for(field),
            field,
            _line(places, field),
            severity="error" if certain else "warning",
        )
        for field, message, certain in misfits
    ]


def _change(current: str, new: ModelConfig) -> tuple[list[str], str]:
    """Return the outermost fields that differ, and what applying them does (a key of EFFECTS)."""
    old, _ = _read(current)
    return ([], "reload") if old is None else (changed_fields(old, new), reload_rule.effect(old, new))


def _summary(before: str, text: str) -> str:
    changed, _ = _change(before, model_config.parse(text))
    return f"Changed {', '.join(changed)}" if changed else "Changed the text, not its meaning"


def _diff(old: str, new: str) -> str:
    return unified(old, new, old_name="current", new_name="new")


def _line(places: Places, path: str) -> int:
    place = places.locate(path)
    return place[0] if place else 0


def changed_fields(old: ModelConfig, new: ModelConfig) -> list[str]:
    """Return the outermost fields that differ, in the order of model_config.proto."""
    before, after = ({field.name: value for field, value in config.ListFields()} for config in (old, new))
    names = [field.name for field in ModelConfig.DESCRIPTOR.fields]
    return [name for name in names if before.get(name) != after.get(name)]


def refuse_outdated(*, model: Model, base_release: int | None) -> None:
    """Raise Conflict, with both texts, where another text than that of `base_release` is the model's by now.

    base_release: the number of the release that a person's text was made from; 0 for none, None where that is not known.
    Releases that were made since with the same text, or as further steps of the same rollout, are no others.
    """
    newest = newest_release(model)
    if base_release is None or base_release == (newest.number if newest else 0):
        return
    base = model.releases.filter(number=base_release).first()
    if newest is not None and base is not None and same_text(*same_but_weight(base.text, newest.text)):
        return
    now = newest.number if newest else 0
    raise Outdated(
        f"release {base_release} was edited, but {now} is the current one by now",
        base_text=unstamped(base.text) if base else "",
        current_text=unstamped(newest.text) if newest else "",
        current_release=now,
        current_by=newest.created_by_name if newest else "",
    )


def refuse_drift(model: Model) -> None:
    """Raise Conflict where the file is not what was adopted last, for only a person may have it overwritten.

    In the caller's transaction, which holds a lock on `model`. The text of a release that was broken off is taken back.
    """
    text_take_back(model)
    if problem := changed_by_hand(model):
        raise Conflict(problem)
