"""Reads of tunings."""

from django.db.models import QuerySet

from dashboard.models import Job, Tuning, Version
from dashboard.shared.exceptions import NotFound


def tunings(version: Version) -> QuerySet[Tuning]:
    """Return the tunings of a version, the newest first."""
    return Tuning.objects.filter(version=version).select_related("version__model", "job")


def tuning_get(version: Version, pk: int) -> Tuning:
    """Return a tuning. Raises NotFound if the version has none of that id."""
    found = tunings(version).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"version {version.number} of '{version.model.name}' has no tuning {str(pk)[:20]}")
    return found


def canary_job(tuning: Tuning) -> Job | None:
    """Return the newest job that prepares a canary of a tuning; None for none."""
    return Job.objects.filter(kind="tuned_canary", params__tuning=tuning.pk).order_by("-pk").first()
