"""Jobs that share something run one after the other, and a job that waits says for which one."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.jobs import tasks
from dashboard.jobs.kinds import Kind, kinds
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel, job_create, jobs_requeue_lost
from dashboard.models import Job
from dashboard.shared.choices import JobState
from tests.dashboard.web_process import finished, migrate, run
from tests.support.serving_process import START_TIMEOUT_S

LONG_AGO = timedelta(minutes=5)


@pytest.fixture(autouse=True)
def does(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two kinds of jobs, `saw` and `drill`, that share a bench and do what the test says."""
    does: dict[str, Any] = {"run": lambda context: {}}
    for name in ("saw", "drill"):
        kind = Kind(name, lambda context: does["run"](context), lambda job: None, turn="bench")
        monkeypatch.setitem(kinds(), name, kind)
    return does


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The jobs that a worker announced because their turn had come."""
    found: list[int] = []
    monkeypatch.setattr(tasks.run_job, "delay", found.append)
    return found


def queued(kind: str, title: str = "") -> Job:
    return job_create(kind=kind, params={}, actor=SYSTEM, title=title or kind, announce=False)


@pytest.mark.django_db
def test_a_second_job_waits_and_its_turn_is_announced_at_the_end_of_the_first(
    does: dict[str, Any], announced: list[int]
) -> None:
    first, second, third = queued("saw", "Saw the oak"), queued("drill"), queued("saw")

    def beside(context: Any) -> dict[str, Any]:
        tasks.run_job(second.pk)
        second.refresh_from_db()
        assert (second.state, second.started_at) == (JobState.QUEUED, None)
        assert second.step == f"Waits until job {first.pk} has ended: Saw the oak"
        assert announced == []
        return {}

    def look(context: Any) -> dict[str, Any]:
        third.refresh_from_db()
        assert third.step == f"Waits until job {second.pk} has ended: drill"
        return {}

    does["run"] = beside
    tasks.run_job(first.pk)
    assert announced == [second.pk]
    does["run"] = look
    tasks.run_job(second.pk)
    second.refresh_from_db()
    assert (second.state, second.step) == (JobState.SUCCEEDED, "")
    assert announced == [second.pk, third.pk]


@pytest.mark.django_db
@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_the_next_job_runs_however_the_first_one_ends(
    does: dict[str, Any], announced: list[int], actor: Actor, end: str
) -> None:
    first, second = queued("saw"), queued("drill")

    def ends(context: Any) -> dict[str, Any]:
        if end == "fails":
            raise RuntimeError
        job_cancel(job=first, actor=actor)
        context.check_cancelled()
        raise AssertionError

    does["run"] = ends
    tasks.run_job(first.pk)
    assert announced == [second.pk]


@pytest.mark.django_db
def test_a_job_that_waits_can_be_cancelled(does: dict[str, Any], announced: list[int], actor: Actor) -> None:
    first, second = queued("saw"), queued("drill")
    does["run"] = lambda context: job_cancel(job=second, actor=actor) and {}
    tasks.run_job(first.pk)
    second.refresh_from_db()
    assert (second.state, announced) == (JobState.CANCELLED, [])


@pytest.mark.django_db
def test_a_job_whose_worker_died_lets_the_others_run(
    does: dict[str, Any], announced: list[int], unqueued: list[int]
) -> None:
    """`watch` queues the lost job again, and announces it; the order of the two does not matter."""
    lost, other = queued("saw"), queued("drill")
    Job.objects.filter(pk=lost.pk).update(state=JobState.RUNNING, heartbeat_at=timezone.now() - LONG_AGO)
    tasks.run_job(other.pk)
    assert Job.objects.get(pk=other.pk).state == JobState.QUEUED
    jobs_requeue_lost()
    tasks.run_job(other.pk)
    assert Job.objects.get(pk=other.pk).state == JobState.SUCCEEDED
    assert announced == [lost.pk]


@pytest.mark.django_db
def test_jobs_of_other_kinds_do_not_wait(does: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds(), "plain", Kind("plain", lambda context: {}, lambda job: None))
    first, other = queued("saw"), queued("plain")
    does["run"] = lambda context: job_run(job_id=other.pk) or {}
    job_run(job_id=first.pk)
    assert Job.objects.get(pk=other.pk).state == JobState.SUCCEEDED


_JOBS = """
from dashboard.access.authorisation import SYSTEM
from dashboard.jobs.services import job_create
for _ in range(4):
    job_create(kind="measure", params={"measurement": 0}, actor=SYSTEM, announce=False)
"""
_WORKER = """
import os, time
from dashboard.jobs import kinds
from dashboard.jobs.runner import job_run
from dashboard.models import Job
log = os.open("{log}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work(context):
    os.write(log, b"begin\\n")
    for _ in range(10):
        context.progress(50)
    os.write(log, b"end\\n")
    return {}
kind = kinds.kinds()["measure"]
kinds.kinds()["measure"] = kinds.Kind("measure", work, kind.abandoned, turn=kind.turn)
while Job.objects.filter(state__in=("queued", "running")).exists():
    for pk in Job.objects.filter(state="queued").values_list("pk", flat=True):
        job_run(job_id=pk)
"""


def test_two_workers_do_not_run_two_jobs_at_the_same_time(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    migrate(data)
    finished(data, "manage.py", "shell", "--no-imports", "-c", _JOBS)
    code = _WORKER.replace("{log}", str(log))
    workers = [run(data, "manage.py", "shell", "--no-imports", "-c", code) for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=START_TIMEOUT_S)
        assert worker.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    assert log.read_text().split() == ["begin", "end"] * 4


@pytest.mark.django_db
def test_measurements_tunings_and_replays_share_the_machine_and_other_long_jobs_follow_their_like() -> None:
    turns = {name: kind.turn for name, kind in kinds().items() if kind.turn}
    own = {name: name for name in ("batch", "fetch", "convert", "export")}
    own |= dict.fromkeys(("measure", "tune", "replay"), "machine")
    assert turns == {"saw": "bench", "drill": "bench", **own}
