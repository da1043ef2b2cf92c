"""Long work as rows: made, queued on commit, cancelled, and queued anew when a worker was lost. Running them: runner.py."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.jobs.kinds import kind_path, load_kind
from dashboard.jobs.tasks import run_job
from dashboard.models import Job, Model
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import Conflict

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
UNFINISHED = (JobState.QUEUED, JobState.RUNNING)


def job_create(
    *,
    kind: str,
    params: dict[str, Any],
    actor: Actor,
    title: str = "",
    model: Model | None = None,
    announce: bool = True,
) -> Job:
    """A new job; a worker hears of it when the transaction commits. Without `announce` the caller runs it at once."""
    kind_path(kind)
    job = Job.objects.create(
        kind=kind,
        title=title or kind,
        params=params,
        model=model,
        created_by=actor.user,
        created_by_name=actor.name,
    )
    if announce:
        _queue_on_commit(job.pk)
    return job


def job_cancel(*, job: Job, actor: Actor) -> Job:
    """A queued job ends at once, a running one at its next step. Whoever began an upload may stop its jobs."""
    own = actor.user is not None and job.created_by_id == actor.user.pk
    require(actor, Right.UPLOAD_DATA if own and not actor.may(Right.OPERATE) else Right.OPERATE)
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
            load_kind(job.kind).abandoned(job)
    return job


def job_request_cancel(*, job_id: int) -> None:
    """Ask an unfinished job to stop whose work was ended already, by somebody who may; a queued one ends when it is run."""
    Job.objects.filter(pk=job_id, state__in=UNFINISHED).update(cancel_requested=True)


def jobs_requeue_lost(*, older_than: timedelta = timedelta(seconds=30)) -> int:
    """Queues anew what a dead worker left behind, and what the broker lost; gives up after MAX_ATTEMPTS.

    A queued job that no worker took within `older_than` is announced again, which is harmless when it was not lost;
    while workers are busy, seldom.
    """
    now = timezone.now()
    cut = now - older_than
    busy = Job.objects.filter(state=JobState.RUNNING, heartbeat_at__gte=cut).exists()
    unheard = now - older_than * (20 if busy else 1)
    lost = Job.objects.filter(
        Q(state=JobState.RUNNING, heartbeat_at__lt=cut) | Q(state=JobState.QUEUED, queued_at__lt=unheard)
    )
    return sum(_requeue(job) for job in lost)


def _requeue(job: Job) -> bool:
    now = timezone.now()
    rows = Job.objects.filter(pk=job.pk, state=job.state, attempt=job.attempt)
    if job.state == JobState.QUEUED:
        moved = rows.update(queued_at=now)
    elif job.cancel_requested:
        return _give_up(job, rows, state=JobState.CANCELLED, finished_at=now)
    elif job.attempt + 1 >= MAX_ATTEMPTS:
        error = f"The worker was lost {MAX_ATTEMPTS} times while it ran this job."
        return _give_up(job, rows, state=JobState.FAILED, error=error, finished_at=now)
    else:
        moved = rows.update(state=JobState.QUEUED, attempt=job.attempt + 1, queued_at=now, step="Queued again")
    if moved:
        _queue_on_commit(job.pk)
    return bool(moved)


def _give_up(job: Job, rows: QuerySet[Job], **changes: Any) -> bool:
    with transaction.atomic():
        if not rows.update(**changes):
            return False
        job.refresh_from_db()
        load_kind(job.kind).abandoned(job)
    return True


def _queue_on_commit(job_id: int) -> None:
    transaction.on_commit(lambda: _announce(run_job.delay, job_id))


def _announce(delay: Callable[[int], Any], job_id: int) -> None:
    """A broker that is down costs nothing but time: `watch` announces the job again."""
    try:
        delay(job_id)
    except Exception:
        logger.warning("the queue did not take job %s; it is announced again later", job_id)
