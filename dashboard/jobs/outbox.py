"""Sends jobs to the queue. A job's row says whether it is still to be sent (`to_send`), so that no job depends on the queue.

The process that makes a job sends it when its transaction commits. If the queue does not take it, or that process ends first,
`watch` sends it. A job that is sent twice runs once, because a worker claims its row.
"""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import Celery
from django.conf import settings
from django.utils import timezone

from dashboard.models import Job
from dashboard.shared import changes, heartbeat
from dashboard.shared.choices import JobState

logger = logging.getLogger(__name__)

WAITS = "Waits for the job queue, which does not answer"
# After the queue did not answer, a process lets `watch` send its jobs for this time, so that requests do not wait again.
REST_S = 10.0
# The process that made a job has this time to send it.
_OWN_TIME = timedelta(seconds=3)
# A worker with a free thread has begun what it took out of the queue after this time, unless it was killed, stopped or cut off.
_TAKEN = timedelta(seconds=10)
# A key that Redis loses together with its messages.
_MARK = "slipway.queue"

_resting_until = 0.0


def send(delay: Callable[[int], object], job_id: int) -> bool:
    """Send a job to the workers; return False if the queue does not take it, so that `watch` sends it. delay: the task's."""
    global _resting_until
    rows, taken = Job.objects.filter(pk=job_id, state=JobState.QUEUED), False
    if time.monotonic() >= _resting_until:
        try:
            delay(job_id)
            taken = True
        except Exception:
            logger.warning("the queue did not take job %s; it is sent later", job_id)
            _resting_until = time.monotonic() + REST_S
    if taken:
        with changes.quietly():
            rows.filter(to_send=True).update(to_send=False)
    else:
        rows.update(to_send=True, step=WAITS)
    return taken


class Outbox:
    """Sends, for `watch`, what is still to be sent, and what is lost: by a queue that was away or emptied, or by a worker that
    took it and has not begun it."""

    def __init__(self, app: Celery, delay: Callable[[int], object]) -> None:
        self._app, self._delay = app, delay
        self._away = False

    def __call__(self) -> str:
        """Return what there is to log."""
        global _resting_until
        old = Job.objects.filter(state=JobState.QUEUED, queued_at__lt=timezone.now() - _OWN_TIME)
        if settings.REDIS_URL:
            before = self._away
            try:
                emptied, drained = self._ask()
            except Exception as error:
                self._away = True
                return f"the queue does not answer, and jobs wait: {error}"
            self._away, _resting_until = False, 0.0
            if before or emptied:
                old.update(to_send=True)
            elif drained and Job.objects.filter(state=JobState.RUNNING).count() < _threads():
                old.filter(queued_at__lt=timezone.now() - _TAKEN).update(to_send=True)
        ids = list(old.filter(to_send=True).order_by("pk").values_list("pk", flat=True))
        sent = sum(send(self._delay, pk) for pk in ids)
        if sent:
            done = Job.objects.filter(pk__in=ids, state=JobState.QUEUED, to_send=False)
            done.filter(step=WAITS).update(step="")
            done.update(queued_at=timezone.now())
        return f"sent jobs that waited for the queue: {sent}" if sent else ""

    def _ask(self) -> tuple[bool, bool]:
        """Ask Redis. Return whether it has been emptied, or has never been asked, and whether workers have taken all jobs."""
        with self._app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            emptied = bool(channel.client.set(_MARK, "1", nx=True))
            drained = not channel.client.llen(self._app.conf.task_default_queue)
        heartbeat.beat("queue")
        return emptied, drained


def _threads() -> int:
    """Return how many jobs the workers that answer run at once."""
    workers = sum(one.name == "worker" and not one.silent for one in heartbeat.processes())
    return int(max(1, workers) * settings.CELERY_WORKER_CONCURRENCY)
