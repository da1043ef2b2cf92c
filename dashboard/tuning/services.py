"""Starts and deletes tunings, and applies the chosen configuration: directly, or as a canary by a job."""

from collections.abc import Mapping

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.configuration.services import config_apply
from dashboard.jobs.services import UNFINISHED, job_create
from dashboard.measurements.inputs import encoded, requests_of
from dashboard.measurements.machine import cores
from dashboard.measurements.runs import UNDER_WAY
from dashboard.models import Job, Model, Release, Tuning, Version
from dashboard.releases.selectors import current_document, fitting_document, newest_release
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.repository_errors import repository_errors
from dashboard.tuning.changes import changed_document, changed_models, own_settings, refuse_unchanged
from dashboard.tuning.parameters import Limits
from dashboard.tuning.plan import GOALS, measured_plan, plan_of
from dashboard.tuning.space import differences, space_of
from repository.config import version_settings
from repository.config.document import Document
from repository.config.model_config import is_ensemble

MOST_KEPT = 50  # tunings of one version


@repository_errors()
def tuning_start(*, version: Version, actor: Actor, plan: Mapping[str, object] | None = None) -> Tuning:
    """Create a tuning with its job. plan: fields that differ from the defaults (tuning.plan).

    Raises Invalid if the plan is wrong, no request can be made for the version, or nothing in its configuration can be varied.
    Raises Conflict if the version is not published or has settings of its own, or if a measurement or tuning is under way.
    """
    require(actor, Right.OPERATE)
    whole = plan_of(plan or {})
    with transaction.atomic():
        model = Model.locked(version.model_id)
        version = model.versions.get(pk=version.pk)
        version.model = model
        _refuse_untunable(version)
        newest = newest_release(model)
        document = _document_for(version)
        steps = _steps_of(document)
        limits = Limits(cores(), whole["most_instances"], whole["most_batch"], whole["most_threads"])
        space = space_of({model.name: document, **steps}, limits)
        if not space.axes:
            raise Invalid(
                "nothing can be tuned: no parameter of this configuration has a second value within the bounds"
            )
        measured = measured_plan(whole)
        encoded(requests_of(measured, version, document), measured["encoding"], version, {})
        tuning = Tuning.objects.create(
            version=version,
            release=newest.number if newest is not None else 0,
            config=document.text,
            steps={name: step.text for name, step in steps.items()},
            plan=whole,
            axes={axis.name: list(axis.values) for axis in space.axes},
            present=space.present,
            created_by=actor.user,
            created_by_name=actor.name,
        )
        tuning.job = job_create(
            kind="tune",
            params={"tuning": tuning.pk},
            actor=actor,
            title=f"Tune version {version.number} of {model.name}",
            model=model,
        )
        tuning.save(update_fields=["job"])
        audit_record(
            actor=actor,
            action="tuning.start",
            model=model,
            summary=f"Began to tune version {version.number} of {model.name}: {GOALS[whole['goal']]}",
            after={"tuning": tuning.pk, "plan": whole},
        )
    return tuning


def tuning_delete(*, tuning: Tuning, actor: Actor) -> None:
    """Delete a tuning that has ended. Raises Conflict if it is under way."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        version = tuning.version
        model = Model.locked(version.model_id)
        tuning.refresh_from_db()
        if tuning.under_way:
            raise Conflict(f"tuning {tuning.pk} is under way: cancel its job first")
        audit_record(
            actor=actor,
            action="tuning.delete",
            model=model,
            summary=f"Deleted tuning {tuning.pk} of version {version.number} of {model.name}",
            before={"tuning": tuning.pk, "plan": tuning.plan, "chosen": tuning.chosen},
        )
        tuning.delete()


@repository_errors()
def tuning_apply(*, tuning: Tuning, actor: Actor) -> list[Release]:
    """Make the chosen configuration the present one, of an ensemble also those of its steps; return the releases.

    All of them are made, or none. Raises Conflict if the tuning found nothing better, or a parameter was changed meanwhile.
    It also raises the errors of `config_apply`.
    """
    require(actor, Right.OPERATE)
    refuse_unchanged(tuning)
    summary = f"Tuned: {changes_in_words(tuning)}"
    with transaction.atomic():
        found = []
        for name in changed_models(tuning):
            model = Model.objects.get(name=name)
            document = changed_document(tuning, model)
            found.append(config_apply(model=model, document=document, actor=actor, summary=summary))
        tuning.applied = {**tuning.applied, "releases": {release.model.name: release.number for release in found}}
        tuning.save(update_fields=["applied"])
    return found


@repository_errors()
def tuning_canary(*, tuning: Tuning, actor: Actor, override: str = "") -> Job:
    """Begin a canary of the chosen configuration, by a job: it publishes the files again as a version of its own, with the
    chosen settings, and begins a rollout to it.

    override: why the new version may get requests of clients although it does not keep the budget of the model. Raises Conflict
    if the tuning found nothing better, changes a step of an ensemble, or its change cannot be one of a single version.
    """
    require(actor, Right.OPERATE)
    require(actor, Right.UPLOAD_DATA)
    refuse_unchanged(tuning)
    model = tuning.version.model
    others = [name for name in changed_models(tuning) if name != model.name]
    if others:
        raise Conflict(
            f"the chosen configuration changes {', '.join(others)}, and a canary of '{model.name}' moves only requests between "
            "its own versions: apply it directly"
        )
    own_settings(current_document(model).message, changed_document(tuning, model).message)
    with transaction.atomic():
        model = Model.locked(model.pk)
        if Job.objects.filter(kind="tuned_canary", params__tuning=tuning.pk, state__in=UNFINISHED).exists():
            raise Conflict(f"a canary of tuning {tuning.pk} is being prepared already")
        if "rollout" in tuning.applied:
            raise Conflict(f"tuning {tuning.pk} was applied as rollout {tuning.applied['rollout']} already")
        job = job_create(
            kind="tuned_canary",
            params={"tuning": tuning.pk, "override": override.strip()[:500]},
            actor=actor,
            title=f"Begin a canary of {model.name} from tuning {tuning.pk}",
            model=model,
        )
        audit_record(
            actor=actor,
            action="tuning.canary",
            model=model,
            summary=f"Applied tuning {tuning.pk} of {model.name} as a canary: {changes_in_words(tuning)}",
            after={"tuning": tuning.pk, "chosen": tuning.chosen},
        )
    return job


def changes_in_words(tuning: Tuning) -> str:
    """Return the changed parameters: "instances 1 to 2, queue delay off to 500"."""
    several = len(tuning.steps) > 0
    return ", ".join(
        f"{f'{one.model}: ' if several else ''}{one.label.lower()} {one.before} to {one.after}"
        for one in differences(tuning, tuning.chosen)
    )


def _refuse_untunable(version: Version) -> None:
    name, number = version.model.name, version.number
    if version.state != VersionState.PUBLISHED:
        raise Conflict(f"version {number} of '{name}' is {version.state}: only a published version can be tuned")
    rows = Tuning.objects.filter(version=version)
    if rows.filter(state__in=UNDER_WAY).exists():
        raise Conflict(f"version {number} of '{name}' is being tuned: wait, or cancel that job")
    if rows.count() >= MOST_KEPT:
        raise Conflict(f"version {number} of '{name}' has {MOST_KEPT} tunings: delete some")


def _document_for(version: Version) -> Document:
    """Return the present configuration, or the one that fits a version that does not serve. Raises Invalid for a mistake."""
    model = version.model
    newest = newest_release(model)
    served = newest is not None and version.number in newest.versions
    document = current_document(model) if served else fitting_document(version) or current_document(model)
    document = document.without_traffic()
    if document.mistake:
        raise Invalid(f"the configuration cannot be read: {document.mistake.message}")
    if version.number in version_settings.settings_of(document.message):
        raise Conflict(
            f"version {version.number} of '{model.name}' has settings of its own: move them into the model's first"
        )
    return document


def _steps_of(document: Document) -> dict[str, Document]:
    """Return the configurations of the models that an ensemble calls; {} for any other model."""
    if not is_ensemble(document.message):
        return {}
    names = dict.fromkeys(step.model_name for step in document.message.ensemble_scheduling.step)
    rows = {model.name: model for model in Model.objects.filter(name__in=names)}
    found = {name: current_document(rows[name]).without_traffic() for name in names if name in rows}
    return {name: step for name, step in found.items() if step and not step.mistake}
