"""Retention: archives versions that a model no longer needs, by the model's own rule.

A version stays while it is among the newest `count`, or was published in the last `days`; without a rule, all stay.
A version also stays if it serves, is wanted, has an alias, or is younger than RECENT, and if it belongs to the release to which
*go back* returns.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.models import Model, Version
from dashboard.models.model import Retention
from dashboard.releases.bucket import bucket_point_soon
from dashboard.releases.selectors import protected_versions
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.versions.moves import version_archive

RECENT = timedelta(hours=24)
MAX_COUNT, MAX_DAYS = 10_000, 36_500
AT_A_TIME = 20  # the most versions that are archived in one run


def retention_set(*, model: Model, actor: Actor, count: int | None = None, days: int | None = None) -> Model:
    """Set the retention rule of a model; with neither number, all versions stay. Raises Invalid if a number is out of range."""
    require(actor, Right.OPERATE)
    for name, number, most in (("count", count, MAX_COUNT), ("days", days, MAX_DAYS)):
        if number is not None and not 1 <= number <= most:
            raise Invalid(f"expected '{name}' as a number from 1 to {most}, not {number}")
    rule: Retention = {}
    if count is not None:
        rule["count"] = count
    if days is not None:
        rule["days"] = days
    with transaction.atomic():
        model = Model.locked(model.pk)
        if model.retention != rule:
            before, model.retention = model.retention, rule
            model.save(update_fields=["retention"])
            bucket_point_soon(model)
            audit_record(
                actor=actor,
                action="model.retention",
                model=model,
                summary=f"{model.name}: {rule_in_words(rule)}",
                before={"retention": before},
                after={"retention": rule},
            )
    return model


def rule_in_words(rule: Retention) -> str:
    """Return a rule as a clause."""
    parts = []
    if "count" in rule:
        parts.append(f"the newest {rule['count']}")
    if "days" in rule:
        parts.append(f"those of the last {rule['days']} days")
    return f"keeps {' and '.join(parts)}" if parts else "keeps every version"


def expendable_versions(model: Model, now: datetime | None = None) -> list[Version]:
    """Return the published versions that retention would archive, the oldest first."""
    rule, now = model.retention, now or timezone.now()
    if not rule:
        return []
    rows = list(model.versions.filter(state=VersionState.PUBLISHED).order_by("-number"))
    kept = {row.pk for row in rows[: rule.get("count", 0)]}
    since = now - max(timedelta(days=rule.get("days", 0)), RECENT)
    protected = protected_versions(model)
    spare = [row for row in rows if row.pk not in kept and row.created_at < since and row.number not in protected]
    return spare[::-1]


def retention_run() -> list[str]:
    """Archive versions that models no longer need, a few at a time; return one sentence for each success or failure."""
    done: list[str] = []
    for model in Model.objects.exclude(retention={}):
        for version in expendable_versions(model)[: AT_A_TIME - len(done)]:
            try:
                version_archive(version=version, actor=SYSTEM)
            except DashboardError as error:
                done.append(f"Version {version.number} of {model.name} was not archived: {error.message}.")
            else:
                done.append(
                    f"Archived version {version.number} of {model.name}: the model {rule_in_words(model.retention)}."
                )
    return done
