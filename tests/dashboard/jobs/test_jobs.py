"""A job runs once at a time, however often it is announced, and outlives its worker."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import OperationalError
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.jobs.context import JobContext, JobSuperseded
from dashboard.jobs.kinds import Kind, kinds
from dashboard.jobs.runner import UNKNOWN, job_run
from dashboard.jobs.services import job_cancel, job_create, jobs_requeue_lost
from dashboard.models import AuditEntry, Job
from dashboard.shared import heartbeat
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, NotFound
from tests.dashboard.web_process import migrate
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

pytestmark = pytest.mark.django_db
LONG_AGO = timedelta(minutes=5)


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A kind of job, `trial`, that does what the test says."""
    does: dict[str, Any] = {"run": lambda context: {"answer": 42}, "abandoned": lambda job: None}
    trial = Kind("trial", lambda context: does["run"](context), lambda job: does["abandoned"](job))
    monkeypatch.setitem(kinds(), "trial", trial)
    return does


@pytest.fixture
def job(unqueued: list[int]) -> Job:
    return job_create(kind="trial", params={"a": 1}, actor=SYSTEM, title="A trial")


def test_a_job_is_announced_when_its_transaction_commits(
    unqueued: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        job = job_create(kind="trial", params={}, actor=SYSTEM)
        assert unqueued == []
    assert unqueued == [job.pk]


def test_a_job_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Invalid, match="expected a job of kind"):
        job_create(kind="nonsense", params={}, actor=SYSTEM)


def test_a_job_runs_with_progress_log_and_result(job: Job, kind: dict[str, Any]) -> None:
    def work(context: JobContext) -> dict[str, Any]:
        assert context.params == {"a": 1}
        context.progress(30, "Thinking")
        context.log("first")
        context.log("second")
        row = Job.objects.get()
        assert (row.state, row.progress, row.step, row.log) == (JobState.RUNNING, 30, "Thinking", "first\nsecond\n")
        return {"answer": 42}

    kind["run"] = work
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.progress, job.result) == (JobState.SUCCEEDED, 100, {"answer": 42})
    assert job.started_at <= job.finished_at


def test_a_job_announced_twice_runs_once(job: Job, kind: dict[str, Any]) -> None:
    runs = []
    kind["run"] = lambda context: runs.append(job_run(job_id=job.pk))
    job_run(job_id=job.pk)
    job_run(job_id=job.pk)
    assert len(runs) == 1


def test_an_expected_failure_is_shown_whole_and_an_unexpected_one_is_not(
    job: Job, kind: dict[str, Any], unqueued: list[int]
) -> None:
    def fail(error: Exception) -> Any:
        def work(context: JobContext) -> None:
            raise error

        return work

    kind["run"] = fail(NotFound("there is no such upload"))
    job_run(job_id=job.pk)
    other = job_create(kind="trial", params={}, actor=SYSTEM)
    kind["run"] = fail(RuntimeError("/secret/path"))
    job_run(job_id=other.pk)
    errors = list(Job.objects.order_by("pk").values_list("state", "error"))
    assert errors[0] == (JobState.FAILED, "there is no such upload")
    assert Job.objects.get(pk=job.pk).result == {"status": 404}
    assert "/secret/path" not in errors[1][1]
    assert "worker's log" in errors[1][1]


def test_a_queued_job_is_cancelled_at_once(job: Job, actor: Actor) -> None:
    job_cancel(job=job, actor=actor)
    assert job.state == JobState.CANCELLED
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert AuditEntry.objects.get().summary == f"Cancelled job {job.pk} (A trial)"
    with pytest.raises(Conflict, match="cancelled"):
        job_cancel(job=job, actor=actor)


def test_a_running_job_is_cancelled_at_its_next_step(job: Job, kind: dict[str, Any], actor: Actor) -> None:
    def work(context: JobContext) -> None:
        job_cancel(job=job, actor=actor)
        context.progress(50)
        raise AssertionError

    kind["run"] = work
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED


def test_what_nobody_ran_to_its_end_is_put_right_by_its_kind(job: Job, kind: dict[str, Any], actor: Actor) -> None:
    reported: list[str] = []
    kind["abandoned"] = lambda job: reported.append(job.state)
    job_cancel(job=job, actor=actor)
    for lost in ({"cancel_requested": True}, {"attempt": 2}):
        other = job_create(kind="trial", params={}, actor=SYSTEM)
        Job.objects.filter(pk=other.pk).update(state=JobState.RUNNING, heartbeat_at=timezone.now() - LONG_AGO, **lost)
        jobs_requeue_lost()
    assert reported == [JobState.CANCELLED, JobState.CANCELLED, JobState.FAILED]


def test_a_job_is_cancelled_by_operators_and_by_whoever_began_it(
    unqueued: list[int], person: Any, actor: Actor
) -> None:
    uploader = Actor(user=person("upload_data"))
    theirs = job_create(kind="trial", params={}, actor=uploader)
    others = job_create(kind="trial", params={}, actor=actor)
    assert job_cancel(job=theirs, actor=uploader).state == JobState.CANCELLED
    with pytest.raises(Forbidden):
        job_cancel(job=others, actor=uploader)
    assert job_cancel(job=others, actor=actor).state == JobState.CANCELLED


def test_a_lost_job_is_queued_again_and_given_up_at_the_third_time(
    job: Job, unqueued: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    states = []
    for _ in range(3):
        Job.objects.update(state=JobState.RUNNING, heartbeat_at=timezone.now() - LONG_AGO)
        with django_capture_on_commit_callbacks(execute=True):
            assert jobs_requeue_lost() == 1
        states.append(Job.objects.get().state)
    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.FAILED]
    assert "died 3 times" in Job.objects.get().error
    assert unqueued == [job.pk, job.pk]


def test_a_job_runs_again_soon_after_its_worker_has_ended_but_not_while_that_lives(
    job: Job, kind: dict[str, Any], unqueued: list[int]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        path = django_settings.HEARTBEAT_DIR / f"worker.{worker.pid}.1.{int(time.time()) + 1}"
        path.touch()
        os.utime(path, (time.time() - 40,) * 2)
        (key,) = [one.key for one in heartbeat.processes() if one.pid == worker.pid]
        silent = {"state": JobState.RUNNING, "heartbeat_at": timezone.now() - timedelta(seconds=10)}
        Job.objects.update(**silent, worker=key)
        assert jobs_requeue_lost() == 0, "it may be stopped or cut off, and go on"
        worker.kill()
    assert jobs_requeue_lost() == 1
    heartbeat.beat("worker")
    kind["run"] = lambda context: {"by": Job.objects.get().worker}
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.attempt, job.result) == (1, {"by": heartbeat.own_key()})
    Job.objects.update(**silent)
    assert jobs_requeue_lost() == 0, "this process lives"
    heartbeat.forget()
    heartbeat._over.clear()
    assert jobs_requeue_lost() == 1, "it has ended in good order"


def test_a_job_that_nobody_took_is_announced_again(
    job: Job, unqueued: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    assert jobs_requeue_lost() == 0
    Job.objects.update(queued_at=timezone.now() - LONG_AGO)
    with django_capture_on_commit_callbacks(execute=True):
        assert jobs_requeue_lost() == 1
    assert unqueued == [job.pk]
    assert jobs_requeue_lost() == 0


@pytest.mark.parametrize("cancels", [False, True])
def test_a_job_of_a_kind_that_only_another_release_knows_waits_for_that(
    job: Job, monkeypatch: pytest.MonkeyPatch, cancels: bool
) -> None:
    monkeypatch.delitem(kinds(), "trial")
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.step, job.to_send, job.attempt) == (JobState.QUEUED, UNKNOWN, True, 0)
    stale = {"heartbeat_at": timezone.now() - LONG_AGO, "cancel_requested": cancels, "attempt": 9}
    Job.objects.update(state=JobState.RUNNING, **stale)  # its worker died, and this `watch` leads
    assert jobs_requeue_lost() == 1
    job.refresh_from_db()
    assert (job.state, job.error) == (JobState.QUEUED, "")


def test_while_workers_are_busy_queued_jobs_are_left_to_wait(job: Job) -> None:
    job_create(kind="trial", params={}, actor=SYSTEM)
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, heartbeat_at=timezone.now())
    Job.objects.update(queued_at=timezone.now() - LONG_AGO)
    assert jobs_requeue_lost() == 0


def test_a_cancelled_job_whose_worker_died_is_not_queued_again(job: Job) -> None:
    Job.objects.update(state=JobState.RUNNING, heartbeat_at=timezone.now() - LONG_AGO, cancel_requested=True)
    jobs_requeue_lost()
    assert Job.objects.get().state == JobState.CANCELLED


def test_a_worker_that_was_taken_for_lost_writes_no_more(job: Job, kind: dict[str, Any]) -> None:
    def work(context: JobContext) -> None:
        Job.objects.update(heartbeat_at=timezone.now() - LONG_AGO)
        jobs_requeue_lost()
        context.log("from the grave")
        with pytest.raises(JobSuperseded):
            context.progress(99)
        raise JobSuperseded

    kind["run"] = work
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.attempt, job.progress, job.log) == (JobState.QUEUED, 1, 0, "")


def test_a_log_has_an_end(job: Job, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.jobs.context.LOG_LIMIT", 10)
    kind["run"] = lambda context: [context.log("12345") for _ in range(5)] and {}
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.log == "12345\n12345\n"


@pytest.mark.django_db(transaction=True)
def test_a_working_job_shows_that_it_lives(job: Job, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.jobs.context.HEARTBEAT_SECONDS", 0.2)

    def work(context: JobContext) -> dict[str, Any]:
        first = Job.objects.get().heartbeat_at

        def beaten() -> bool:
            with contextlib.suppress(OperationalError):  # in a database in memory, readers do not wait for writers
                return Job.objects.get().heartbeat_at > first
            return False

        wait_until(beaten, what="a beat")
        return {"beat": True}

    kind["run"] = work
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.result == {"beat": True}


# -- a real worker ---------------------------------------------------------------------------------------------------


@pytest.fixture
def worker_data(tmp_path: Any) -> dict[str, str]:
    """A data folder with a database, and the environment that names it."""
    environment = {
        **os.environ,
        "SLIPWAY_DATA": str(tmp_path / "worker"),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
    }
    migrate(tmp_path / "worker")
    return environment


def manage(environment: dict[str, str], *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=django_settings.BASE_DIR,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=START_TIMEOUT_S,
    )
    return done.stdout.strip()


def states(environment: dict[str, str]) -> tuple[str, str]:
    """The states of the job and of the upload."""
    with contextlib.closing(
        sqlite3.connect(f"{environment['SLIPWAY_DATA']}/db.sqlite3", timeout=PATIENCE_S)
    ) as database:
        rows = database.execute(
            "SELECT j.state, u.state FROM dashboard_job j JOIN dashboard_upload u ON u.job_id = j.id"
        )
        return rows.fetchone()


def test_a_real_worker_takes_jobs_from_the_file_broker(worker_data: dict[str, str]) -> None:
    publish = """
from dashboard.access.authorisation import SYSTEM
from dashboard.models import Upload
from dashboard.uploads.publication import upload_publish
from django.conf import settings
from repository.config.document import Document
settings.AT_ONCE_BYTES = 0
upload = Upload.objects.get()
upload_publish(upload=upload, actor=SYSTEM, document=Document.read(upload.proposal["config"]))
"""
    code = """
from dashboard.access.authorisation import SYSTEM
from dashboard.uploads.services import upload_create, upload_receive_chunk, upload_complete
from tests.dashboard.conftest import relu_bytes
content = relu_bytes()
upload = upload_create(actor=SYSTEM, model_name="relu", files=[{"path": "m.onnx", "size": len(content)}])
upload_receive_chunk(upload=upload, number=0, offset=0, chunk=content, actor=SYSTEM)
upload_complete(upload=upload, actor=SYSTEM)
"""
    manage(worker_data, "shell", "--no-imports", stdin=code)
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "dashboard", "worker", "--pool=solo", "--loglevel=WARNING"],
        cwd=django_settings.BASE_DIR,
        env=worker_data,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        wait_until(lambda: states(worker_data)[0] not in ("queued", "running"), START_TIMEOUT_S, "the inspection's end")
        assert states(worker_data) == ("succeeded", "inspected")
        manage(worker_data, "shell", "--no-imports", stdin=publish)
        wait_until(
            lambda: states(worker_data)[0] not in ("queued", "running"), START_TIMEOUT_S, "the publication's end"
        )
        assert states(worker_data) == ("succeeded", "published")
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        worker.communicate(timeout=PATIENCE_S)
