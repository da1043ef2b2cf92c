"""The kind of job that answers the rows of a batch job; its params hold the id of a BatchJob as `batch`."""

from django.urls import reverse

from dashboard.access.authorisation import Right
from dashboard.batches.running import batch_attempts_in_vain, batch_run
from dashboard.batches.services import KIND
from dashboard.jobs.kinds import Kind
from dashboard.models import BatchJob, Job


def _nothing(job: Job) -> None:
    """Keep the parts that are done, so that the batch job can be continued."""


def _page(job: Job) -> tuple[str, str] | None:
    if not BatchJob.objects.filter(pk=job.params["batch"]).exists():
        return None
    return reverse("batch", args=[job.params["batch"]]), "Open the batch job"


BATCH = Kind(
    KIND, batch_run, _nothing, right=Right.INFER, page=_page, attempts_in_vain=batch_attempts_in_vain, turn=KIND
)
