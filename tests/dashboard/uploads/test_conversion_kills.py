"""A worker, or a program of a conversion, that is killed at any step leaves the upload as it was, or converted."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dashboard.conversions.conversion import LOCKS
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment
from tests.dashboard.conversions.artefacts import dense_bytes
from tests.dashboard.web_process import migrate
from tests.support.forks import Forks
from tests.support.serving_process import PATIENCE_S, wait_until

pytestmark = pytest.mark.long

PREPARE = """
import django; django.setup()
import sys
from dashboard.access.authorisation import SYSTEM
from dashboard.jobs.runner import job_run
from dashboard.uploads.conversion import conversion_start
from dashboard.uploads.services import upload_complete, upload_create, upload_receive_chunk
content = sys.stdin.buffer.read()
upload = upload_create(actor=SYSTEM, model_name="dense", files=[{"path": "dense.onnx", "size": len(content)}])
upload_receive_chunk(upload=upload, number=0, offset=0, chunk=content, actor=SYSTEM)
job_run(job_id=upload_complete(upload=upload, actor=SYSTEM).pk)
upload.refresh_from_db()
conversion_start(upload=upload, actor=SYSTEM, recipe="onnx_fp16")
"""
# An attempt of a worker. It kills itself before the call that is named or while the named program runs, or kills that program.
WORK = """
import contextlib, os, signal, threading, time
import django; django.setup()
from datetime import timedelta
from pathlib import Path
import psutil
from dashboard.access.authorisation import SYSTEM
from dashboard.jobs.context import JobContext
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Job, Upload, UploadFile
from dashboard.uploads import conversion, states
from dashboard.uploads.conversion import conversion_start

def fatal(real, left):
    def call(*given, **more):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)
    return call

def strike(owner, name):  # wait until a program runs, then kill it, or this worker
    own = " ".join(psutil.Process().cmdline())  # a new child has this command line until it becomes its program
    while True:
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = " ".join(one.cmdline())
                if name in line and line != own:
                    return one.kill() if owner == "program" else os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)

def attempt(owner, name, left):
    jobs_requeue_lost(older_than=timedelta(0))
    upload = Upload.objects.get()
    if upload.state == "inspected" and not upload.conversion.get("lineage"):
        conversion_start(upload=upload, actor=SYSTEM, recipe="onnx_fp16")
    owners = {"states": states, "conversion": conversion, "context": JobContext, "path": Path}
    if owner in owners:
        setattr(owners[owner], name, fatal(getattr(owners[owner], name), left))
    if owner in ("while", "program"):  # name: a word in the command line of the program
        threading.Thread(target=strike, args=(owner, name), daemon=True).start()
    for job in Job.objects.filter(state="queued").order_by("pk"):
        job_run(job_id=job.pk)
    for job in Job.objects.filter(kind="inspect", state="queued"):
        job_run(job_id=job.pk)
    upload = Upload.objects.get()
    there = sorted(path.name for path in (upload.folder / "files").iterdir())
    return [upload.state, [file.path for file in upload.files.all()], there, upload.conversion.get("error", "")]
"""
STEPS = [
    ("context", "progress", 1),
    ("conversion", "run", 1),
    ("while", "onnx_fp16.py", 0),
    ("conversion", "run", 2),
    ("while", "conversions.answers", 0),
    ("conversion", "converted_models", 1),
    ("path", "chmod", 1),
    ("conversion", "_inspection_of", 1),
    ("states", "converted", 1),
    ("conversion", "_remove_old_files", 1),
]


class Workers(Forks):
    """They share a data folder of their own, with the environment of the recipes for ONNX."""

    def __init__(self, data: Path) -> None:
        self.data = data
        super().__init__(WORK, variables(data))

    def programs(self) -> list[str]:
        """Return the command lines of the processes that work in this data folder."""
        found = (" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))
        return [line for line in found if str(self.data) in line]

    def work(self, owner: str = "", name: str = "", left: int = 0) -> tuple[int, Any]:
        """Return how an attempt ended: 0, or the negative signal; and the upload's state, its files, what is there, and why it
        was not converted."""
        status, found = self.run(owner, name, left)
        assert status in (0, -signal.SIGKILL), found
        return status, found


def variables(data: Path) -> dict[str, str]:
    return {**os.environ, "SLIPWAY_DATA": str(data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an upload whose conversion is wanted."""
    data = tmp_path_factory.mktemp("inspected") / "data"
    migrate(data)
    with environment(read_lock(LOCKS / "onnx.txt"), data / "environments", lambda percent, step: None):
        subprocess.run([sys.executable, "-c", PREPARE], input=dense_bytes(), env=variables(data), check=True)
    return data


@pytest.fixture(scope="module")
def all_workers(inspected: Path) -> Iterator[Workers]:
    data = inspected.with_name("worked in")
    with Workers(shutil.copytree(inspected, data, symlinks=True)) as made:
        yield made


@pytest.fixture
def workers(inspected: Path, all_workers: Workers) -> Workers:
    """With the data folder as it was before any of them worked."""
    shutil.rmtree(all_workers.data, ignore_errors=True)
    shutil.copytree(inspected, all_workers.data, symlinks=True)
    return all_workers


CONVERTED = ["inspected", ["1/model.onnx"], ["1"], ""]


@pytest.mark.parametrize(("owner", "name", "left"), STEPS)
def test_a_killed_worker_leaves_nothing_half_done(workers: Workers, owner: str, name: str, left: int) -> None:
    status, _ = workers.work(owner, name, left)
    assert status == -signal.SIGKILL
    wait_until(lambda: not workers.programs(), PATIENCE_S, "the end of the programs")
    status, found = workers.work()
    assert (status, found[:2] + found[3:]) == (0, CONVERTED[:2] + CONVERTED[3:])


def test_a_killed_program_leaves_the_upload_as_it_was(workers: Workers) -> None:
    _, found = workers.work("program", "onnx_fp16.py")
    assert found == [
        "inspected",
        ["dense.onnx"],
        ["0"],
        "the program was killed: perhaps the machine has too little memory",
    ]
    assert workers.work()[1] == CONVERTED
