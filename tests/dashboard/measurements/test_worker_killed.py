"""A worker that is killed in a measurement leaves a server, which the next attempt ends before it continues."""

import contextlib
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from tests.dashboard.web_process import finished, migrate, run
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

_BEGIN = """
from dashboard.access.authorisation import Actor
from dashboard.measurements.services import measurement_start
from dashboard.models import Version
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_create, upload_receive_chunk
from django.contrib.auth import get_user_model
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes
actor = Actor(user=get_user_model().objects.create_superuser("olga"))
content = relu_bytes()
upload = upload_create(actor=actor, model_name="relu", files=[{"path": "model.onnx", "size": len(content)}])
upload_receive_chunk(upload=upload, number=0, offset=0, chunk=content, actor=actor)
upload_publish(upload=as_inspected(upload), actor=actor, document=Document.read(CONFIG))
plan = {"loads": [1, 2], "warmup_s": 0.1, "window_s": 0.2, "least_windows": 2, "most_windows": 3, "variation": 1.0}
found = measurement_start(version=Version.objects.get(), actor=actor, plan=plan)
"""
# The worker waits for ever at one step, so that it is killed in it.
_STUCK = {
    "the start of the server": """
def stuck(*given):
    threading.Event().wait()
own_server._wait_for = stuck
""",
    "the second load": """
load = runs._load
def stuck(context, measurement, server, watch, requests, load_):
    if load_ == 2:
        threading.Event().wait()
    return load(context, measurement, server, watch, requests, load_)
runs._load = stuck
""",
    "the end": """
def stuck(*given):
    threading.Event().wait()
runs._end = stuck
""",
}
_WORK = """
import threading
from dashboard.jobs.runner import job_run
from dashboard.measurements import own_server, runs
from dashboard.models import Job
{stuck}
job_run(job_id=Job.objects.get(kind="measure").pk)
"""
_AGAIN = """
from datetime import timedelta
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Job
jobs_requeue_lost(older_than=timedelta(0))
job_run(job_id=Job.objects.get(kind="measure").pk)
"""


def row(data: Path) -> dict[str, Any]:
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3", timeout=PATIENCE_S)) as database:
        state, loads, server = database.execute("SELECT state, loads, server FROM dashboard_measurement").fetchone()
    return {"state": state, "loads": orjson.loads(loads), "server": orjson.loads(server)}


def shell(data: Path, code: str) -> "subprocess.Popen[str]":
    return run(data, "manage.py", "shell", "--no-imports", "-c", code, output=subprocess.DEVNULL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    migrate(tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize(("step", "loads"), [("the start of the server", 0), ("the second load", 1), ("the end", 2)])
def test_the_next_attempt_ends_the_server_and_keeps_the_loads(data: Path, step: str, loads: int) -> None:
    finished(data, "manage.py", "shell", "--no-imports", "-c", _BEGIN)
    with shell(data, _WORK.replace("{stuck}", _STUCK[step])) as worker:
        there = lambda: "pid" in row(data)["server"] and len(row(data)["loads"]) == loads  # noqa: E731
        wait_until(lambda: there() or worker.poll() is not None, START_TIMEOUT_S, step)
        assert worker.poll() is None, (data.parent / "errors").read_text()
        worker.send_signal(signal.SIGKILL)
    before = row(data)
    assert (before["state"], len(before["loads"])) == ("running", loads)
    left = process_of(before["server"])
    assert (left is not None and left.is_running()) or step == "the end"
    finished(data, "manage.py", "shell", "--no-imports", "-c", _AGAIN)
    after = row(data)
    assert after["state"] == "done"
    assert [load["load"] for load in after["loads"]] == [1.0, 2.0]
    assert after["loads"][:loads] == before["loads"]
    for process in (left, process_of(after["server"])):
        wait_until(lambda process=process: process is None or has_ended(process), what="the end of the server")


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def process_of(server: dict[str, Any]) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(server["pid"])
        return process if abs(process.create_time() - server["started"]) < 0.01 else None
    return None
