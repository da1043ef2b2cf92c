"""Runs a queued job once, in the process that claims its row first, and records the outcome."""

import logging
import time

from django.db import InterfaceError, OperationalError, close_old_connections, connection, transaction
from django.utils import timezone

from dashboard.jobs.context import JobCancelled, JobContext, JobSuperseded
from dashboard.jobs.kinds import Work, kind_of, kinds, kinds_beside
from dashboard.models import Job
from dashboard.shared import heartbeat
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError, status_of

logger = logging.getLogger(__name__)

PATIENCE_S = 600.0  # a job's thread waits so long for a database that it has lost
UNKNOWN = "Waits for a worker of a release that knows this kind of job"


def job_run(*, job_id: int, work: Work | None = None) -> None:
    """Run a queued job in this process, unless another worker has it, it has ended, or it is not its turn.

    work: the function to run, by default the function of the job's kind. A job of a kind that only another release knows stays
    in the queue: `watch` sends it again, until a worker of that release takes it.
    """
    if work is None and _is_unknown(job_id):
        return
    job = _claim(job_id, taking_turns(job_id) if work is None else [])
    if job is None:
        return
    with JobContext(job) as context:
        # A request does not wait for the database: `watch` takes its job for lost.
        _finish(job, *_outcome(context, work or kind_of(job.kind).run), patience_s=PATIENCE_S if work is None else 0.0)


def _is_unknown(job_id: int) -> bool:
    rows = Job.objects.filter(pk=job_id, state=JobState.QUEUED).exclude(kind__in=kinds())
    return bool(rows.update(to_send=True, queued_at=timezone.now(), step=UNKNOWN))


def next_in_turn(*, job_id: int) -> int | None:
    """Return the job that may run now because this one does not run any more; None if there is none, or another one runs."""
    rows = Job.objects.filter(kind__in=taking_turns(job_id))
    if rows.filter(state=JobState.RUNNING).exists():
        return None
    return rows.filter(state=JobState.QUEUED).order_by("pk").values_list("pk", flat=True).first()


def taking_turns(job_id: int) -> list[str]:
    """Return the kinds whose jobs do not run beside this job; [] if it takes no turns."""
    name = Job.objects.filter(pk=job_id).values_list("kind", flat=True).first()
    return kinds_beside(name) if name is not None else []


def _claim(job_id: int, beside: list[str]) -> Job | None:
    """Let this process have a queued job, and return it; None if another one has it, it has ended, or it is not its turn.

    beside: the kinds whose jobs do not run at the same time.
    """
    now, own = timezone.now(), Job.objects.filter(pk=job_id, state=JobState.QUEUED)
    with transaction.atomic():
        # The rows of all such jobs are locked, so that two workers do not claim two of them at the same time.
        unfinished = Job.objects.filter(kind__in=beside, state__in=(JobState.QUEUED, JobState.RUNNING)).order_by("pk")
        rows = list(unfinished.select_for_update()) if beside else []
        ahead = next((row for row in rows if row.state == JobState.RUNNING and row.pk != job_id), None)
        if ahead is not None:
            own.update(step=_waits_for(ahead))
            return None
        begins = {"state": JobState.RUNNING, "worker": heartbeat.own_key(), "started_at": now, "heartbeat_at": now}
        claimed = own.update(**begins, progress=0, step="", error="")
        for row in rows:
            if claimed and row.pk == job_id:  # the others may have waited for another job until now
                Job.objects.filter(kind__in=beside, state=JobState.QUEUED).update(step=_waits_for(row))
    return Job.objects.get(pk=job_id) if claimed else None


def _waits_for(job: Job) -> str:
    return f"Waits until job {job.pk} has ended: {job.title}"[:200]


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
    except Exception as error:
        if _lost_database(error):
            logger.error("job %s lost its database, and runs again when that is back", context.job.pk)
            again = {"attempt": context.job.attempt + 1, "worker": "", "to_send": True, "step": "Queued again"}
            return JobState.QUEUED, again
        logger.exception("job %s failed", context.job.pk)
        return JobState.FAILED, {"error": "The job failed unexpectedly; the worker's log has the details."}
    return JobState.SUCCEEDED, {"result": result or {}, "progress": 100}


def _lost_database(error: Exception) -> bool:
    """Return whether PostgreSQL went away or is stopping (57P), or PgBouncer says so (08), rather than refused a statement."""
    state = getattr(error.__cause__, "sqlstate", "")
    return isinstance(error, OperationalError | InterfaceError) and (state is None or state.startswith(("57P", "08")))


def _finish(job: Job, state: JobState | None, changes: dict[str, object], *, patience_s: float) -> None:
    """Store how the attempt ended, or that the job is queued again, as soon as the database answers.

    After `patience_s` without it, `watch` takes the job for lost.
    """
    if state is None:
        return
    over = time.monotonic() + patience_s
    while True:
        now, own = timezone.now(), Job.objects.filter(pk=job.pk, state=JobState.RUNNING, attempt=job.attempt)
        try:
            own.update(state=state, **{"queued_at" if state == JobState.QUEUED else "finished_at": now}, **changes)
        except (OperationalError, InterfaceError) as error:
            if connection.in_atomic_block or time.monotonic() > over or not _lost_database(error):
                raise
            close_old_connections()
            time.sleep(1.0)
        else:
            return
