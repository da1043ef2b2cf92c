"""A worker that is killed at any step leaves every part whole or absent, and the next one goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from tests.dashboard.batches.conftest import csv_of
from tests.dashboard.web_process import migrate
from tests.support import model_factory
from tests.support.forks import Forks
from tests.support.ports import free_ports
from tests.support.serving_process import START_TIMEOUT_S, ServerProcess

pytestmark = pytest.mark.long

ROWS = 1000
NEVER = 1_000_000  # a step that no attempt reaches
PREPARE = """
import django; django.setup()
from django.contrib.auth import get_user_model
from dashboard.access.authorisation import Actor
from dashboard.batches.selectors import batch_get
from dashboard.batches.services import batch_create, batch_receive_chunk, batch_start
from dashboard.configuration.drift import model_adopt
from dashboard.models import Model
from dashboard.servers.services import server_ensure_local
import sys
server_ensure_local()
actor = Actor(user=get_user_model().objects.create_superuser("olga"))
model_adopt(name="scale", actor=actor)
Model.objects.update(desired_state="loaded")
content = sys.stdin.buffer.read()
batch = batch_create(actor=actor, model_name="scale", files=[{"path": "rows.csv", "size": len(content)}])
batch_receive_chunk(batch=batch, number=0, offset=0, chunk=content, actor=actor)
batch_start(batch=batch_get(batch.pk, actor), actor=actor)
print(batch.pk)
"""
# One attempt of a worker, which sends itself a signal at its n-th call of a function that writes. For a signal that only stops
# it, only calls outside a transaction count: a process that is stopped within one lets nobody else write in SQLite.
WORK = """
import os, signal
import django; django.setup()
from datetime import timedelta
from pathlib import Path
from django.contrib.auth import get_user_model
from dashboard.access.authorisation import Actor
from dashboard.batches import running
from dashboard.batches.formats.table import Limits
from dashboard.batches.selectors import batch_get
from dashboard.batches.services import batch_resume
from dashboard.jobs import context
from dashboard.jobs.context import JobContext
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import BatchJob, BatchPart
from repository.files import storage

context.HEARTBEAT_SECONDS = 3600.0  # its thread writes, too, and would be stopped in the middle of it
running.PART = Limits(rows=50, size=1 << 20)
running.LOCK_WAIT_S = 0.1

def counted(owner, name, sent):
    real = getattr(owner, name)
    def call(*given, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), sent)
        return real(*given, **more)
    setattr(owner, name, call)

def attempt(step, name):
    global left
    left, sent = step, signal.Signals[name]
    jobs_requeue_lost(older_than=timedelta(0))
    batch = BatchJob.objects.select_related("job").get()
    if batch.state in ("failed", "cancelled"):
        batch_resume(batch=batch, actor=Actor(user=get_user_model().objects.get()))
        batch.refresh_from_db()
    steps = [(JobContext, "progress")]
    if sent == signal.SIGKILL:
        steps += [(running.os, "fsync"), (running.Path, "replace"), (storage, "sync"), (storage, "remove_tree"),
                  (JobContext, "refuse_superseded")]
    for owner, name in steps:
        counted(owner, name, sent)
    job_run(job_id=batch.job_id)
    batch = BatchJob.objects.select_related("job").get()
    assert batch.state == "succeeded", (batch.state, batch.job.error)
    return batch.rows_done, batch.error_rows, BatchPart.objects.count()
"""


class Workers:
    """Processes that share a data folder of their own and the address of an inference server."""

    def __init__(self, data: Path, http_port: int, metrics_port: int) -> None:
        self._environment = {
            **os.environ,
            "SLIPWAY_DATA": str(data),
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SLIPWAY_HTTP_PORT": str(http_port),
            "SLIPWAY_METRICS_PORT": str(metrics_port),
        }

    @cached_property
    def forks(self) -> Forks:
        return Forks(WORK, self._environment)

    def work(self, step: int = NEVER) -> tuple[int, Any]:
        """Return how an attempt ended: 0, 1 or a negative signal; and the number of rows, errors and parts, or a traceback."""
        return self.forks.run(step, "SIGKILL")

    def begin_work(self, step: int, sent: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", f"{WORK}\nattempt({step}, {sent!r})"]
        return subprocess.Popen(command, cwd=settings.BASE_DIR, env=self._environment, stderr=subprocess.DEVNULL)

    def run(self, script: str, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(
            command,
            cwd=settings.BASE_DIR,
            env=self._environment,
            input=stdin,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ServerProcess, Workers]]:
    data = tmp_path / "data"
    migrate(data)
    model_factory.onnx_scale(data / "models")
    http, metrics = free_ports(2)
    flags = (f"--http-port={http}", f"--metrics-port={metrics}")
    workers = Workers(data, http, metrics)
    with ServerProcess(data / "models", *flags) as process, workers.forks:
        yield process, workers


def test_a_worker_that_is_killed_at_any_step_loses_and_doubles_no_row(
    server: tuple[ServerProcess, Workers], tmp_path: Path
) -> None:
    process, workers = server
    prepared = workers.run(PREPARE, stdin=csv_of(ROWS))
    assert prepared.returncode == 0, prepared.stderr.decode()
    batch = prepared.stdout.decode().strip()
    killed = 0
    for step in (1, 2, 4, 5, 6, 7, 8, 9, 10, 13, 17, 22, 26, 31, 47):
        status, found = workers.work(step)
        if status == 0:
            break
        assert status == -signal.SIGKILL, found
        killed += 1
        if killed == 6:
            process.kill()
            process.start()
    else:
        status, found = workers.work()
    assert killed >= 8
    assert (status, found) == (0, [ROWS, 0, 0])
    assert_whole(tmp_path, batch)


def test_a_worker_that_is_stopped_and_goes_on_later_loses_and_doubles_no_row(
    server: tuple[ServerProcess, Workers], tmp_path: Path
) -> None:
    _, workers = server
    batch = workers.run(PREPARE, stdin=csv_of(ROWS)).stdout.decode().strip()
    stopped = workers.begin_work(9, "SIGSTOP")
    try:
        assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])
        status, found = workers.work()
        assert status == 1
        assert "'failed'" in found
        assert "this batch job" in found, "the sentence says what the other worker has"
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.wait(START_TIMEOUT_S)
    assert workers.work() == (0, [ROWS, 0, 0])
    assert_whole(tmp_path, batch)


def assert_whole(tmp_path: Path, batch: str) -> None:
    lines = (tmp_path / "data" / "batches" / batch / "results" / "0").read_text().splitlines()
    assert lines[0] == "id,INPUT0,OUTPUT0,error"
    assert lines[1:] == [f"row {at},{at},{2.0 * at}," for at in range(ROWS)]
