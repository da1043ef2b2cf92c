"""A worker that is killed in a trial leaves a server, which the next attempt ends before it tries that configuration again."""

import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from tests.dashboard.measurements.test_worker_killed import _BEGIN as _PUBLISH
from tests.dashboard.measurements.test_worker_killed import has_ended, process_of, shell
from tests.dashboard.web_process import finished, migrate
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

_BEGIN = (
    _PUBLISH.partition("plan = ")[0]
    + """
from dashboard.tuning.services import tuning_start
from tests.dashboard.tuning.conftest import SHORT
tuning_start(version=Version.objects.get(), actor=actor, plan={**SHORT, "most_trials": 2})
"""
)
# The second trial waits for ever, so that the worker is killed in it.
_WORK = """
import threading
from django.conf import settings
from dashboard.jobs.runner import job_run
from dashboard.models import Job, Tuning
from dashboard.tuning import runs
measure = runs.run_load
def stuck(*given):
    if Tuning.objects.get().trials:
        (settings.DATA_DIR / "stuck").touch()
        threading.Event().wait()
    return measure(*given)
runs.run_load = stuck
job_run(job_id=Job.objects.get(kind="tune").pk)
"""
_AGAIN = """
from datetime import timedelta
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Job
jobs_requeue_lost(older_than=timedelta(0))
job_run(job_id=Job.objects.get(kind="tune").pk)
"""


def row(data: Path) -> dict[str, Any]:
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3", timeout=PATIENCE_S)) as database:
        found = database.execute("SELECT state, trials, server, gain FROM dashboard_tuning").fetchone()
    return dict(
        zip(("state", "trials", "server", "gain"), (found[0], *map(orjson.loads, found[1:3]), found[3]), strict=True)
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    migrate(tmp_path / "data")
    return tmp_path / "data"


def test_the_next_attempt_ends_the_server_and_keeps_the_trials(data: Path) -> None:
    finished(data, "manage.py", "shell", "--no-imports", "-c", _BEGIN)
    with shell(data, _WORK) as worker:
        stuck = data / "stuck"
        wait_until(lambda: worker.poll() is not None or stuck.exists(), START_TIMEOUT_S, "the second trial")
        assert worker.poll() is None, (data.parent / "errors").read_text()
        worker.send_signal(signal.SIGKILL)
    before = row(data)
    assert (before["state"], len(before["trials"])) == ("running", 1)
    left = psutil.Process(before["server"]["pid"])
    assert left.is_running()
    finished(data, "manage.py", "shell", "--no-imports", "-c", _AGAIN)
    after = row(data)
    assert after["state"] == "done"
    assert after["trials"][0] == before["trials"][0]
    searched = [one for one in after["trials"] if not one["round"]]
    assert len(searched) == 2
    assert searched[0]["setting"] != searched[1]["setting"]
    wait_until(lambda: has_ended(left), what="the end of the server that was left")
    assert process_of(after["server"]) is None, "the worker has waited for its own server"
    assert list((data / "tunings").iterdir()) == []
