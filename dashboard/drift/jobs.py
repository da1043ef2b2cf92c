"""The kind of job that compares the new windows of a drift monitor; its params are {"monitor": id}."""

from django.urls import reverse

from dashboard.access.authorisation import Right
from dashboard.drift.runs import drift_abandoned, drift_run
from dashboard.jobs.kinds import Kind
from dashboard.models import DriftMonitor, Job


def _page(job: Job) -> tuple[str, str] | None:
    found = DriftMonitor.objects.filter(pk=job.params["monitor"]).select_related("model").first()
    if found is None:
        return None
    return f"{reverse('model_drift', args=[found.model.name])}?monitor={found.pk}", "Open the data drift"


DRIFT = Kind("drift", drift_run, drift_abandoned, right=Right.OPERATE, page=_page)
