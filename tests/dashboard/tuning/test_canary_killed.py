"""A worker that is killed after any act of a canary's preparation leaves nothing half done, and the next attempt goes on."""

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.dashboard.measurements.test_worker_killed import _BEGIN as _PUBLISH
from tests.dashboard.web_process import finished, migrate
from tests.support.forks import Forks
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.long

_BEGIN = (
    _PUBLISH.partition("plan = ")[0]
    + """
from dashboard.models import Model, Tuning
from dashboard.servers.services import server_ensure_local
from dashboard.tuning.parameters import Limits
from dashboard.tuning.plan import plan_of
from dashboard.tuning.services import tuning_canary
from dashboard.tuning.space import space_of
from dashboard.versions.services import release_promote
from tests.dashboard.conftest import serve
server_ensure_local()
version = Version.objects.get()
release_promote(version=version, actor=actor)
serve(Model.objects.get())
space = space_of({"relu": Document.read(CONFIG)}, Limits(2, 4, 16, 2))
tuning = Tuning.objects.create(version=version, config=CONFIG, plan=plan_of({}), state="done", present=space.present,
    axes={axis.name: list(axis.values) for axis in space.axes}, chosen={**space.present, "relu:queue_delay": "500"})
tuning_canary(tuning=tuning, actor=actor)
"""
)
# One attempt of a worker, which kills itself after the n-th call of a function that writes. A job that was given up is asked
# for again, as a person would.
_WORK = """
import os, signal
import django; django.setup()
from datetime import timedelta
from dashboard.access.authorisation import Actor
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Job, Tuning
from dashboard.tuning import canary
from dashboard.tuning.services import tuning_canary
from django.contrib.auth import get_user_model

def counted(name):
    real = getattr(canary, name)
    def call(*given, **more):
        global left
        found = real(*given, **more)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(canary, name, call)

def attempt(step):
    global left
    left = step
    jobs_requeue_lost(older_than=timedelta(0))
    job = Job.objects.filter(kind="tuned_canary").latest("pk")
    if job.state == "failed":
        assert "The worker died" in job.error, job.error
        job = tuning_canary(tuning=Tuning.objects.get(), actor=Actor(user=get_user_model().objects.get()))
    for name in ("upload_create", "upload_receive_file", "upload_complete", "inspection_run", "upload_publish",
                 "publication_run", "config_apply", "rollout_start", "_keep"):
        counted(name)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.state == "succeeded", job.error
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    migrate(tmp_path / "data")
    return tmp_path / "data"


def rows(data: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3", timeout=PATIENCE_S)) as database:
        return database.execute(sql).fetchall()


def test_the_next_attempt_goes_on_after_every_act(data: Path) -> None:
    finished(data, "manage.py", "shell", "--no-imports", "-c", _BEGIN)
    environment = {**os.environ, "SLIPWAY_DATA": str(data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    killed = 0
    with Forks(_WORK, environment) as workers:
        for step in (1, 2, 3, 4, 3, 4, 2, 3, 2, 3, 1, 2, 3, 100):
            status, said = workers.run(step)
            if status == 0:
                break
            assert status == -signal.SIGKILL, said
            killed += 1
    assert status == 0
    assert killed >= 6
    assert rows(data, "SELECT number, state FROM dashboard_version ORDER BY number") == [
        (1, "published"),
        (2, "published"),
    ]
    assert rows(data, "SELECT candidate FROM dashboard_rollout") == [("2",)]
    uploads = [state for (state,) in rows(data, "SELECT state FROM dashboard_upload ORDER BY created_at")]
    assert sorted(uploads).count("published") == 2
    assert set(uploads) <= {"published", "cancelled"}
