"""Starts and deletes measurements, and sets the budget of a model."""

from collections.abc import Mapping

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.jobs.services import job_create
from dashboard.measurements.inputs import encoded, requests_of
from dashboard.measurements.plan import RUNNING, plan_of
from dashboard.measurements.runs import UNDER_WAY
from dashboard.models import Measurement, Model, Version
from dashboard.models.measurement import MeasurementPlan, load_in_words
from dashboard.models.model import Budget
from dashboard.releases.bucket import bucket_point_soon
from dashboard.releases.budgets import in_words
from dashboard.releases.digest import digest_of
from dashboard.releases.selectors import current_document, fitting_document, newest_release
from dashboard.servers.selectors import model_states
from dashboard.servers.services import LOCAL
from dashboard.shared.choices import ModelStatus, VersionState
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.repository_errors import repository_errors
from repository.config.document import Document

MOST_KEPT = 200  # measurements of one version
_LONGEST_S = 3600.0
MOST_P99_MS = 3_600_000.0
MOST_PER_SECOND = 1_000_000.0


@repository_errors()
def measurement_start(
    *, version: Version, actor: Actor, plan: Mapping[str, object] | None = None, document: Document | None = None
) -> Measurement:
    """Create a measurement with its job. plan: fields that differ from the defaults (measurements.plan).

    document: the configuration on a server of its own; by default the present one if the version is among those that the model
    should serve, else the one that fits the version. Raises Invalid if the plan is wrong, or no request can be made for it.
    Raises Conflict if the version is not published, does not serve on the running server that is to be measured, or is being
    measured already.
    """
    require(actor, Right.OPERATE)
    whole = plan_of(plan or {})
    if whole["where"] == RUNNING and document is not None:
        raise Invalid.at(
            "where", "the running server has its own configuration: measure another one on a server of its own"
        )
    if longest_s(whole) > _LONGEST_S:
        raise Invalid.at(
            "loads", f"the loads may take {longest_s(whole):.0f} s together; the limit is {_LONGEST_S:g} s"
        )
    with transaction.atomic():
        model = Model.locked(version.model_id)
        version = model.versions.get(pk=version.pk)
        version.model = model
        _refuse_unmeasurable(version, whole)
        newest = newest_release(model)
        chosen = document or document_for(version)
        if chosen.mistake:
            raise Invalid(f"the configuration cannot be read: {chosen.mistake.message}")
        encoded(requests_of(whole, version, chosen), whole["encoding"], version, {})
        measurement = Measurement.objects.create(
            version=version,
            release=newest.number if newest is not None else 0,
            config=chosen.text,
            sha256=digest_of(version, chosen),
            plan=whole,
            created_by=actor.user,
            created_by_name=actor.name,
        )
        measurement.job = job_create(
            kind="measure",
            params={"measurement": measurement.pk},
            actor=actor,
            title=f"Measure version {version.number} of {model.name}",
            model=model,
        )
        measurement.save(update_fields=["job"])
        audit_record(
            actor=actor,
            action="measurement.start",
            model=model,
            summary=f"Began to measure version {version.number} of {model.name}: {_loads_in_words(whole)}",
            after={"measurement": measurement.pk, "plan": whole},
        )
    return measurement


def measurement_delete(*, measurement: Measurement, actor: Actor) -> None:
    """Delete a measurement that has ended. Raises Conflict if it is under way."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        version = measurement.version
        model = Model.locked(version.model_id)
        measurement.refresh_from_db()
        if measurement.under_way:
            raise Conflict(f"measurement {measurement.pk} is under way: cancel its job first")
        audit_record(
            actor=actor,
            action="measurement.delete",
            model=model,
            summary=f"Deleted measurement {measurement.pk} of version {version.number} of {model.name}",
            before={"measurement": measurement.pk, "plan": measurement.plan},
        )
        measurement.delete()


def budget_set(*, model: Model, actor: Actor, budget: Budget) -> Model:
    """Set the budget of a model; {} removes it. Raises Invalid if a number is missing or not allowed."""
    require(actor, Right.OPERATE)
    if budget:
        budget = Budget(
            p99_ms=_positive("p99_ms", budget.get("p99_ms"), MOST_P99_MS),
            per_second=_positive("per_second", budget.get("per_second"), MOST_PER_SECOND),
        )
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = model.budget
        if before != budget:
            model.budget = budget
            model.save(update_fields=["budget"])
            bucket_point_soon(model)
            words = (
                f"Set the budget of {model.name}: {in_words(budget)}"
                if budget
                else f"Removed the budget of {model.name}"
            )
            audit_record(
                actor=actor, action="budget.set", model=model, summary=words, before={**before}, after={**budget}
            )
    return model


def longest_s(plan: MeasurementPlan) -> float:
    """Return the longest time that the loads of a plan take, in seconds."""
    return len(plan["loads"]) * (plan["warmup_s"] + plan["most_windows"] * plan["window_s"])


def _refuse_unmeasurable(version: Version, plan: MeasurementPlan) -> None:
    name = version.model.name
    if version.state != VersionState.PUBLISHED:
        raise Conflict(
            f"version {version.number} of '{name}' is {version.state}: only a published version can be measured"
        )
    rows = Measurement.objects.filter(version=version)
    if rows.filter(state__in=UNDER_WAY).exists():
        raise Conflict(f"version {version.number} of '{name}' is being measured: wait, or cancel that job")
    if rows.count() >= MOST_KEPT:
        raise Conflict(f"version {version.number} of '{name}' has {MOST_KEPT} measurements: delete some")
    if plan["where"] == RUNNING:
        serving = model_states(model_name=name).filter(
            server__name=LOCAL, version=version.number, state=ModelStatus.READY
        )
        if not serving.exists():
            raise Conflict(
                f"version {version.number} of '{name}' does not serve on the running server: measure it on a server of its own"
            )


def document_for(version: Version) -> Document:
    """Return the configuration that is measured by default."""
    model = version.model
    newest = newest_release(model)
    present = current_document(model)
    if newest is not None and version.number in newest.versions:
        return present
    return fitting_document(version) or present


def _loads_in_words(plan: MeasurementPlan) -> str:
    return ", ".join(load_in_words(plan, load) for load in plan["loads"])


def _positive(field: str, value: object, most: float) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
    if not 0 < number <= most:
        raise Invalid.at(field, f"expected '{field}' as a number over 0 and at most {most:g}")
    return number
