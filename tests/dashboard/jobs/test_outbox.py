"""A job that the queue does not take is sent later, and a job that lost its database runs again."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from celery import Celery
from django.db import OperationalError
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM
from dashboard.celery import app
from dashboard.jobs import outbox
from dashboard.jobs.context import JobContext
from dashboard.jobs.kinds import Kind, kinds
from dashboard.jobs.outbox import WAITS, Outbox, send
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import UNSEEN_S, LostJobs, job_create
from dashboard.models import Job
from dashboard.shared.choices import JobState
from tests.support import engines

pytestmark = pytest.mark.django_db
LONG_AGO = timedelta(minutes=5)


def lose_database(context: JobContext) -> dict[str, object]:
    raise OperationalError("gone") from psycopg.OperationalError("gone")


@pytest.fixture
def job(unqueued: list[int], monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setitem(kinds(), "trial", Kind("trial", lose_database, lambda job: None))
    monkeypatch.setattr(outbox, "_resting_until", 0.0)
    return job_create(kind="trial", params={}, actor=SYSTEM)


def facts(job: Job) -> tuple[bool, str]:
    job.refresh_from_db()
    return job.to_send, job.step


def test_a_job_that_the_queue_refuses_waits_and_is_sent_by_watch(job: Job) -> None:
    def refuse(job_id: int) -> None:
        raise OSError("no queue")

    sent: list[int] = []
    watch = Outbox(app, sent.append)
    assert not send(refuse, job.pk)
    assert facts(job) == (True, WAITS)
    assert not send(sent.append, job.pk), "requests do not wait for this queue again"
    outbox._resting_until = 0.0
    assert watch() == "", "the process that made it has time to send it"
    Job.objects.update(queued_at=timezone.now() - LONG_AGO)
    assert watch()
    assert sent == [job.pk]
    assert facts(job) == (False, "")
    assert watch() == ""


@pytest.mark.skipif("redis-server" in engines.MISSING, reason="needs Debian's package redis-server")
def test_a_job_that_a_worker_took_and_did_not_begin_is_sent_again(job: Job, settings: Any) -> None:
    with engines.redis() as redis:
        settings.REDIS_URL = f"redis://127.0.0.1:{redis.port}/0"
        queue, sent = Celery(broker=settings.REDIS_URL, set_as_current=False), []
        watch = Outbox(queue, sent.append)
        assert watch() == "", "the process that made it has time to send it"
        queue.send_task("dashboard.run_job", [job.pk])
        Job.objects.update(to_send=False, queued_at=timezone.now() - LONG_AGO)
        assert watch() == "", "it is still in the queue"
        with queue.connection_for_write() as connection:
            assert connection.default_channel.client.delete("celery") == 1
        assert watch()
        assert (sent, facts(job)) == ([job.pk], (False, ""))
        assert watch() == "", "a worker has time to begin it"


def test_a_job_that_lost_its_database_is_queued_again(job: Job) -> None:
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.attempt, job.to_send, job.finished_at) == (JobState.QUEUED, 1, True, None)


def test_after_a_time_without_the_database_workers_may_first_send_heartbeats(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job.objects.update(state=JobState.RUNNING, heartbeat_at=timezone.now() - LONG_AGO)
    now = 1000.0
    monkeypatch.setattr("dashboard.jobs.services.time.monotonic", lambda: now)
    lost: Any = LostJobs()
    now += 3 * UNSEEN_S
    assert lost() == 0
    now += UNSEEN_S / 2
    assert lost() == 0
    now += UNSEEN_S / 2
    assert lost() == 1
