"""Workers that are stopped and killed in a replay: the next attempt counts each request once, whatever they did."""

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
from dashboard.models import Version
from dashboard.replays.services import replay_start
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_create, upload_receive_chunk
from django.contrib.auth import get_user_model
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes
from tests.dashboard.replays.conftest import relu_capture
actor = Actor(user=get_user_model().objects.create_superuser("olga"))
content = relu_bytes()
upload = upload_create(actor=actor, model_name="relu", files=[{"path": "model.onnx", "size": len(content)}])
upload_receive_chunk(upload=upload, number=0, offset=0, chunk=content, actor=actor)
upload_publish(upload=as_inspected(upload), actor=actor, document=Document.read(CONFIG))
version = Version.objects.get()
replay_start(capture=relu_capture(version.model, 1000, wrong=lambda place: place % 10 == 0), version=version, actor=actor)
"""
# A worker waits in one window, with requests that were answered but not counted, until it may go on.
_STUCK = """
import os, time
from dashboard.replays.counting import Window
count = Window.count
def stuck(self, replies):
    for at, reply in enumerate(replies):
        while self.rows.numbers[self.places.start] == {done} + 1 and at == 50 and not os.path.exists({go!r}):
            time.sleep(0.02)
        count(self, [reply])
Window.count = stuck
"""
_WORK = """
from dashboard.jobs.runner import job_run
from dashboard.models import Job, Replay
from dashboard.replays import running
running.WINDOW = 100
{stuck}
job_run(job_id=Job.objects.get(kind="replay").pk)
"""
_AGAIN = (
    """
from datetime import timedelta
from dashboard.jobs.services import jobs_requeue_lost
jobs_requeue_lost(older_than=timedelta(0))
"""
    + _WORK
)


def row(data: Path) -> dict[str, Any]:
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3", timeout=PATIENCE_S)) as database:
        found = database.execute("SELECT state, done, position, figures, server FROM dashboard_replay").fetchone()
    return {
        **dict(zip(("state", "done", "position"), found, strict=False)),
        "figures": orjson.loads(found[3]),
        "server": orjson.loads(found[4]),
    }


def shell(data: Path, code: str) -> "subprocess.Popen[str]":
    return run(data, "manage.py", "shell", "--no-imports", "-c", code, output=subprocess.DEVNULL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    migrate(tmp_path / "data")
    return tmp_path / "data"


def test_the_next_attempt_counts_each_request_once(data: Path) -> None:
    go = data.parent / "go"
    finished(data, "manage.py", "shell", "--no-imports", "-c", _BEGIN)
    with (
        shell(data, _WORK.format(stuck=_STUCK.format(done=200, go=str(go)))) as first,
        contextlib.ExitStack() as later,
    ):
        servers = [stuck_at(data, first, 200)]
        first.send_signal(signal.SIGSTOP)
        second = later.enter_context(shell(data, _AGAIN.format(stuck=_STUCK.format(done=600, go=str(go)))))
        servers.append(stuck_at(data, second, 600))
        second.send_signal(signal.SIGKILL)
        finished(data, "manage.py", "shell", "--no-imports", "-c", _AGAIN.format(stuck=""))
        after = row(data)
        go.touch()
        first.send_signal(signal.SIGCONT)  # it goes on, and may count nothing any more
        first.wait(START_TIMEOUT_S)
    assert row(data) == after
    assert (after["state"], after["done"], after["position"]) == ("done", 1000, 1000)
    assert (after["figures"]["compared"], after["figures"]["differ"]) == (1000, 100)
    assert sum(after["figures"]["captured"].values()) == sum(after["figures"]["replayed"].values()) == 1000
    for server in servers:
        wait_until(lambda server=server: has_ended(server), what="the end of a server that an attempt left")
    assert list((data / "replays").rglob("server.args")) == []


def stuck_at(data: Path, worker: "subprocess.Popen[str]", done: int) -> dict[str, Any]:
    """Wait until a worker has counted so many requests, and return its server."""
    wait_until(lambda: row(data)["done"] == done or worker.poll() is not None, START_TIMEOUT_S, f"{done} requests")
    assert worker.poll() is None, (data.parent / "errors").read_text()
    found = row(data)
    assert (found["state"], found["position"], found["figures"]["compared"]) == ("running", done, done)
    return dict(found["server"])


def has_ended(server: dict[str, Any]) -> bool:
    try:
        process = psutil.Process(server["pid"])
        same = abs(process.create_time() - server["started"]) < 0.01
        return not same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
