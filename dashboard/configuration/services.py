"""Previews and applies configurations.

The text is stored as a person wrote it, with the stamp of its release. The form (fields.py) is another view of the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dashboard.access.authorisation import Actor, Right, require
from dashboard.configuration.field_values import FieldError
from dashboard.configuration.fields import Fields, apply_fields, field_for, fields_of
from dashboard.configuration.model_files import Arriving, served_misfits
from dashboard.configuration.needs import Need, config_needs, refuse_unmet
from dashboard.models import Model, Release
from dashboard.releases.bucket import bucket_transaction
from dashboard.releases.gates import refuse_at_gates
from dashboard.releases.rollout_rules import same_but_weight, traffic_kept
from dashboard.releases.selectors import current_document, newest_release
from dashboard.releases.services import refuse_drift, release_make
from dashboard.shared.choices import ReleaseKind
from dashboard.shared.client_gone import go_on
from dashboard.shared.exceptions import Invalid, Outdated, Problem
from dashboard.shared.repository_errors import repository_errors
from repository.config import version_policy
from repository.config.document import NOTHING, Document
from repository.config.file_check import Misfit
from repository.config.lines import unified
from repository.config.release import unserved_alias
from repository.config.text import dropped_comments
from repository.config.traffic import unserved_candidate
from repository.config.validation_parameters import unknown_parameters
from repository.files.foreign_formats import stand_in_for_text

EFFECTS = {
    "none": "Nothing changes.",
    "in_place": "Applies in place: no reload, no request waits.",
    "versions": "Loads and unloads versions; those that stay are not touched.",
    "reload": "Loads the model again next to the serving one, then switches; no request fails.",
}


@dataclass(frozen=True, slots=True)
class ConfigPreview:
    """A document as a configuration, with its problems and the effect of applying it."""

    document: Document
    fields: Fields
    problems: list[Problem] = field(default_factory=list)
    diff: str = ""  # unified, against the current text
    changed_fields: list[str] = field(default_factory=list)  # outermost fields of the configuration
    dropped_comments: list[str] = field(default_factory=list)
    effect: str = "none"  # a key of EFFECTS
    needs: list[Need] = field(default_factory=list)  # rights that applying it needs in addition to the right to operate

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
    base: Document | None = None,
    document: Document | None = None,
    fields: Mapping[str, object] | None = None,
    arriving: Arriving | None = None,
) -> ConfigPreview:
    """Return the preview of a document, or of form fields written into `base`.

    base: the document that is edited, by default the model's current one. The diff is against the current text, or against
    `base` if the model does not exist yet. Mistakes of the configuration are not raised; they are in `problems`. arriving: the
    version that is to be published with the configuration. The configuration must then fit only the file of that version,
    because it is not decided yet which other versions stay served.
    """
    model = Model.objects.filter(name=model_name).first()
    current = current_document(model) if model else (base or NOTHING)
    base = current if base is None else base
    problems: list[Problem] = []
    go_on()
    if document is None:
        document, problems = _from_fields(base, fields or {})
    diff = unified(current.text, document.text, old_name="current", new_name="new")
    if document.mistake is not None:
        problems += _mistake(document)
        return ConfigPreview(document=document, fields={}, problems=problems, diff=diff, effect="reload")
    there = model.published_numbers() if model else []
    go_on()
    problems += _check(document, model, model_name, there, arriving)
    if not problems:
        go_on()
        misfits = document.misfits(arriving.file) if arriving else served_misfits(model, document, there)
        problems = _files_check(document, misfits)
    return ConfigPreview(
        document=document,
        fields=fields_of(document.message),
        problems=problems,
        diff=diff,
        changed_fields=document.changed_fields(current),
        dropped_comments=dropped_comments(base.text, document.text),
        effect=document.effect_after(current),
        needs=config_needs(model_name=model_name, current=current, document=document) if model else [],
    )


@repository_errors()
def config_apply(
    *, model: Model, document: Document, actor: Actor, summary: str = "", base_release: int | None = None
) -> Release:
    """Validate a document, and return a new release with it; return the newest release if the text is the same.

    base_release: the number of the release whose text the person edited.
    Raises Invalid, with the problems, if a server would refuse the text. Raises Outdated if the text has changed since that
    release. Raises Conflict if the file was changed by hand, or the text changes a rollout's policy. Raises Forbidden if
    the actor lacks a right that the change takes.
    """
    require(actor, Right.OPERATE)
    document_check(model=model, document=document, with_files=False)
    with bucket_transaction():
        model = Model.locked(model.pk)
        refuse_outdated(model=model, base_release=base_release)
        refuse_drift(model)
        current = newest_release(model)
        before = current.document if current else NOTHING
        document = traffic_kept(model, before, document)
        if current is not None and before.same_text(document):
            return current
        refuse_unmet(config_needs(model_name=model.name, current=before, document=document), actor.rights())
        document_check(model=model, document=document)
        there = model.published_numbers()
        if (answers := document.answers(there)) != before.answers(there) and answers:
            refuse_at_gates(version=model.versions.get(number=answers), document=document, actor=actor)
        return release_make(
            model=model,
            actor=actor,
            kind=ReleaseKind.CONFIGURE,
            document=document,
            summary=summary or _summary(before, document),
            action="config.apply",
        )


def document_check(
    *,
    document: Document,
    model: Model | None = None,
    model_name: str = "",
    arriving: Arriving | None = None,
    with_files: bool = True,
) -> None:
    """Raise Invalid, with the problems, for a configuration that a server would refuse.

    arriving: the version that is to be published with the configuration. with_files: whether the configuration must fit the
    files of the versions that it would serve.
    """
    go_on()
    mistake = document.mistake
    if mistake is not None:
        problems = _mistake(document)
    else:
        there = model.published_numbers() if model else []
        problems = _check(document, model, model.name if model else model_name, there, arriving)
        if with_files and (there or arriving) and not problems:
            problems = _files_check(document, served_misfits(model, document, there, arriving))
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        where = f"{errors[0].path}: " if mistake is None and errors[0].path else ""
        raise Invalid(f"the configuration is not valid: {where}{errors[0].message}", problems=problems)


def _from_fields(base: Document, fields: Mapping[str, object]) -> tuple[Document, list[Problem]]:
    """Return `base` with the fields written into it; if a field is wrong, return `base` itself and the problem."""
    if base.mistake is not None:
        return base, []
    try:
        return base.edited(lambda config: apply_fields(config, fields)), []
    except FieldError as error:
        return base, [Problem(error.message, field=error.field)]
    except (ValueError, TypeError):
        return base, [Problem("a number in the form is out of range")]


def _mistake(document: Document) -> list[Problem]:
    """Return the mistake of a text as a problem; [] if the text has no mistake."""
    error = document.mistake
    if error is None:
        return []
    if downloaded := stand_in_for_text(document.text):
        return [Problem(downloaded.sentence)]
    return [Problem(error.message, field=field_for(error.field), path=error.field, line=error.line)]


def fields_in(document: Document) -> Fields:
    """Return the fields of a configuration; {} for a text with mistakes."""
    return {} if document.mistake else fields_of(document.message)


def _check(
    document: Document,
    model: Model | None,
    name: str,
    published: list[int],
    arriving: Arriving | None = None,
) -> list[Problem]:
    """Return broken rules as errors, and versions that the policy names but that are not published as a warning.

    published: the numbers of the model's versions. An alias or a candidate of a version that would not be served is an error,
    because a server refuses it.
    """
    config = document.message
    problems = [_problem(document, found.field, found.message) for found in document.problems(name)]
    problems += [
        _problem(document, found.field, found.message, severity="warning") for found in unknown_parameters(config)
    ]
    there = [*published, *([arriving.number] if arriving else [])] if model else []
    missing = version_policy.missing(config, there) if model else []
    if missing:
        path = "version_policy.specific.versions"
        numbers = ", ".join(map(str, missing))
        message = f"there is no published version {numbers}"
        problems.append(_problem(document, path, message, severity="warning"))
    if there and not any(problem.severity == "error" for problem in problems):
        # After a publication, versions with an alias are still served.
        served = there if arriving else version_policy.select(config, there)
        for parameter, unserved in (("aliases", unserved_alias), ("traffic", unserved_candidate)):
            if wrong := unserved(config, served):
                problems.append(_problem(document, f'parameters["slipway.{parameter}"]', wrong))
    return problems


def _files_check(document: Document, misfits: list[Misfit]) -> list[Problem]:
    """Return misfits between a configuration and model files: certain misfits as errors, possible misfits as warnings."""
    return [
        _problem(document, field, message, severity="error" if certain else "warning")
        for field, message, certain in misfits
    ]


def _problem(document: Document, path: str, message: str, severity: str = "error") -> Problem:
    return Problem(message, field_for(path), path, document.line_of(path), severity)


def _summary(before: Document, after: Document) -> str:
    changed = after.changed_fields(before)
    return f"Changed {', '.join(changed)}" if changed else "Changed the text, not its meaning"


def refuse_outdated(*, model: Model, base_release: int | None) -> None:
    """Raise Outdated, with both texts, if the model's text is not the text of `base_release` any more.

    base_release: the number of the release that a person's text was made from; 0 if there was none, None if it is not known.
    Later releases that have the same text, or differ only in the weight of a rollout, do not count.
    """
    newest = newest_release(model)
    if base_release is None or base_release == (newest.number if newest else 0):
        return
    base = model.releases.filter(number=base_release).first()
    if newest is not None and base is not None and same_but_weight(base.document, newest.document):
        return
    now = newest.number if newest else 0
    raise Outdated(
        f"release {base_release} was edited, but {now} is the current one by now",
        base_text=base.document.text if base else "",
        current_text=newest.document.text if newest else "",
        current_release=now,
        current_by=newest.created_by_name if newest else "",
    )
