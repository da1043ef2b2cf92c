"""Runs a queued job once, in the process that claims its row first, and records the outcome."""

import logging

from django.utils import timezone

from dashboard.jobs.context import JobCancelled, JobContext, JobSuperseded
from dashboard.jobs.kinds import Work, kind_of
from dashboard.models import Job
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError, status_of

logger = logging.getLogger(__name__)


def job_run(*, job_id: int, work: Work | None = None) -> None:
    """Run a queued job in this process, unless another worker has it or it has ended.

    work: the function to run, by default the function of the job's kind.
    """
    now = timezone.now()
    claimed = Job.objects.filter(pk=job_id, state=JobState.QUEUED).update(
        state=JobState.RUNNING, started_at=now, heartbeat_at=now, progress=0, error=""
    )
    if not claimed:
        return
    job = Job.objects.get(pk=job_id)
    with JobContext(job) as context:
        _finish(job, *_outcome(context, work or kind_of(job.kind).run))


def job_run_here(*, job: Job, work: Work) -> Job:
    """Run a job that was not announced to workers in this process, and return it with its outcome."""
    job_run(job_id=job.pk, work=work)
    job.refresh_from_db()
    return job


def _outcome(context: JobContext, work: Work) -> tuple[JobState | None, dict[str, object]]:
    """Do the work. Return the job's end state (None if another worker has the job now) and the fields to store."""
    try:
        result = work(context)
    except JobSuperseded:
        return None, {}
    except JobCancelled:
        return JobState.CANCELLED, {}
    except DashboardError as error:
        result = {**context.job.result, "status": status_of(error)}
        return JobState.FAILED, {"error": error.message, "result": result}
    except Exception:
        logger.exception("job %s failed", context.job.pk)
        return JobState.FAILED, {"error": "The job failed unexpectedly; the worker's log has the details."}
    return JobState.SUCCEEDED, {"result": result or {}, "progress": 100}


def _finish(job: Job, state: JobState | None, changes: dict[str, object]) -> None:
    if state is not None:
        own = Job.objects.filter(pk=job.pk, state=JobState.RUNNING, attempt=job.attempt)
        own.update(state=state, finished_at=timezone.now(), **changes)
