"""Makes jobs, queues them on commit, cancels them, and queues them again after their worker died. runner.py runs them."""

import time
from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.jobs.context import HEARTBEAT_SECONDS
from dashboard.jobs.kinds import kind_of, kinds
from dashboard.jobs.outbox import send
from dashboard.jobs.tasks import run_job
from dashboard.models import Job, Model
from dashboard.models.job import JobParams
from dashboard.shared import heartbeat
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import Conflict

MAX_ATTEMPTS = 3
UNSEEN_S = 20.0  # more than the pause between two looks for lost jobs, and than that between two heartbeats of a job
HEARD_S = 5.0  # after this time a new watcher has heard the processes of other machines
UNFINISHED = (JobState.QUEUED, JobState.RUNNING)
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def job_create(
    *,
    kind: str,
    params: JobParams,
    actor: Actor,
    title: str = "",
    model: Model | None = None,
    announce: bool = True,
) -> Job:
    """Make a job, and announce it to a worker when the transaction commits. Without `announce` the caller runs it itself.

    kind: the name of a Kind, else Invalid.
    """
    kind_of(kind)
    job = Job.objects.create(
        kind=kind,
        title=title or kind,
        params=params,
        model=model,
        created_by=actor.user,
        created_by_name=actor.name,
        to_send=announce,
    )
    if announce:
        _queue_on_commit(job.pk)
    return job


def job_cancel(*, job: Job, actor: Actor) -> Job:
    """Cancel a job: a queued job ends immediately, a running one at its next step.

    Raises Forbidden if the actor may neither operate nor began the job with the right of its kind.
    Raises Conflict if the job has ended.
    """
    own = actor.user is not None and job.created_by_id == actor.user.pk
    require(actor, kind_of(job.kind).right if own and not actor.may(Right.OPERATE) else Right.OPERATE)
    now = timezone.now()
    with transaction.atomic():
        rows = Job.objects.filter(pk=job.pk)
        ended = rows.filter(state=JobState.QUEUED).update(
            state=JobState.CANCELLED, cancel_requested=True, finished_at=now
        )
        asked = ended or rows.filter(state=JobState.RUNNING).update(cancel_requested=True)
        if not asked:
            job.refresh_from_db()
            raise Conflict(f"job {job.pk} cannot be cancelled: it has {job.get_state_display().lower()}")
        audit_record(actor=actor, action="job.cancel", summary=f"Cancelled job {job.pk} ({job.title})", model=job.model)
        job.refresh_from_db()
        if ended:
            kind_of(job.kind).abandoned(job)
    return job


def job_request_cancel(*, job_id: int) -> None:
    """Cancel an unfinished job without checking rights. A queued job ends when a worker takes it."""
    Job.objects.filter(pk=job_id, state__in=UNFINISHED).update(cancel_requested=True)


def jobs_requeue_lost(*, older_than: timedelta = timedelta(seconds=30)) -> int:
    """Queue jobs again that a dead worker or the broker lost, and return their number. After MAX_ATTEMPTS a job fails.

    A running job is lost if its last heartbeat is older than `older_than`, or if it has missed one and the process that ran it
    is known to have ended. A queued job is announced again if no worker took it
    in that time, or in 20 times that time while workers are busy. This is harmless if the job was not lost.
    """
    now = timezone.now()
    cut = now - older_than
    busy = Job.objects.filter(state=JobState.RUNNING, heartbeat_at__gte=cut).exists()
    unheard = now - older_than * (20 if busy else 1)
    lost = Job.objects.filter(
        Q(state=JobState.RUNNING, heartbeat_at__lt=cut) | Q(state=JobState.QUEUED, queued_at__lt=unheard)
    )
    missed = now - timedelta(seconds=HEARTBEAT_SECONDS + 2)
    quiet = Job.objects.filter(state=JobState.RUNNING, heartbeat_at__gte=cut, heartbeat_at__lt=missed).exclude(
        worker=""
    )
    return sum(_requeue(job) for job in [*lost, *(job for job in quiet if heartbeat.has_ended(job.worker))])


class LostJobs:
    """Queues lost jobs again, for `watch`. After a time without the database it lets the workers send a heartbeat first."""

    def __init__(self) -> None:
        self._ran_at = time.monotonic()
        self._from = self._ran_at + HEARD_S

    def __call__(self) -> int:
        exists = Job.objects.exists()  # raises an error while the database is away
        now, before = time.monotonic(), self._ran_at
        self._ran_at = now
        if now - before > UNSEEN_S:
            self._from = now + UNSEEN_S
        return jobs_requeue_lost() if exists and now >= self._from else 0


def jobs_forget() -> int:
    """Remove the jobs that ended more than settings.JOB_DAYS ago, and return their number. Their audit entries stay."""
    cut = timezone.now() - timedelta(days=settings.JOB_DAYS)
    return Job.objects.filter(state__in=ENDED, finished_at__lt=cut).delete()[1].get("dashboard.Job", 0)


def _requeue(job: Job) -> bool:
    now, known = timezone.now(), job.kind in kinds()  # another release knows it, and cleans up after it
    rows = Job.objects.filter(pk=job.pk, state=job.state, attempt=job.attempt)
    if job.state == JobState.QUEUED:
        moved = rows.update(queued_at=now, to_send=True)
    elif known and job.cancel_requested:
        return _give_up(job, rows, state=JobState.CANCELLED, finished_at=now)
    elif known and kind_of(job.kind).attempts_in_vain(job) >= MAX_ATTEMPTS:
        error = f"The worker died {MAX_ATTEMPTS} times while it ran this job. Look into its log before you try again."
        return _give_up(job, rows, state=JobState.FAILED, error=error, finished_at=now)
    else:
        moved = rows.update(
            state=JobState.QUEUED, attempt=job.attempt + 1, worker="", queued_at=now, step="Queued again", to_send=True
        )
    if moved:
        _queue_on_commit(job.pk)
    return bool(moved)


def _give_up(job: Job, rows: QuerySet[Job], **changes: object) -> bool:
    with transaction.atomic():
        if not rows.update(**changes):
            return False
        job.refresh_from_db()
        kind_of(job.kind).abandoned(job)
    return True


def _queue_on_commit(job_id: int) -> None:
    transaction.on_commit(lambda: _announce(run_job.delay, job_id))


def _announce(delay: Callable[[int], object], job_id: int) -> None:
    send(delay, job_id)
