"""The kind of job that joins labels with captured answers; its params are {"model": id}."""

from django.urls import reverse

from dashboard.access.authorisation import Right
from dashboard.jobs.kinds import Kind
from dashboard.models import Job
from dashboard.truth.runs import truth_abandoned, truth_run
from dashboard.truth.services import KIND


def _page(job: Job) -> tuple[str, str] | None:
    if job.model is None:
        return None
    return reverse("model_truth", args=[job.model.name]), "Open the truth"


TRUTH = Kind(KIND, truth_run, truth_abandoned, right=Right.OPERATE, page=_page)
