"""A worker, or a program of a conversion, that is killed at any step leaves the upload as it was, or converted."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dashboard.conversions.conversion import LOCKS
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment
from tests.dashboard.conversions.artefacts import dense_bytes
from tests.dashboard.web_process import migrate
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
# One attempt of a worker. It kills itself before the call that is named or while the named program runs, or kills that program.
WORK = """
import contextlib, os, signal, sys, threading, time
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

owner, name, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

def fatal(*given, **more):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given, **more)

def strike():  # wait until a program runs, then kill it, or this worker
    own = " ".join(psutil.Process().cmdline())  # a new child has this command line until it becomes its program
    while True:
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = " ".join(one.cmdline())
                if name in line and line != own:
                    return one.kill() if owner == "program" else os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)

jobs_requeue_lost(older_than=timedelta(0))
upload = Upload.objects.get()
if upload.state == "inspected" and not upload.conversion.get("lineage"):
    conversion_start(upload=upload, actor=SYSTEM, recipe="onnx_fp16")
owners = {"states": states, "conversion": conversion, "context": JobContext, "path": Path}
if owner in owners:
    real = getattr(owners[owner], name)
    setattr(owners[owner], name, fatal)
if owner in ("while", "program"):  # name: a word in the command line of the program
    threading.Thread(target=strike, daemon=True).start()
for job in Job.objects.filter(state="queued").order_by("pk"):
    job_run(job_id=job.pk)
for job in Job.objects.filter(kind="inspect", state="queued"):
    job_run(job_id=job.pk)
upload = Upload.objects.get()
there = sorted(path.name for path in (upload.folder / "files").iterdir())
print(upload.state, [file.path for file in upload.files.all()], there, upload.conversion.get("error", ""), sep="|")
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


class Workers:
    """Processes that share a data folder of their own, with the environment of the recipes for ONNX."""

    def __init__(self, data: Path) -> None:
        self.variables = {**os.environ, "SLIPWAY_DATA": str(data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}

    def run(self, program: str, *arguments: str, content: bytes = b"") -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            input=content,
            capture_output=True,
            env=self.variables,
            check=False,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        return done.returncode, done.stdout.decode().strip().split("|")

    def programs(self) -> list[str]:
        """Return the command lines of the processes that work in this data folder."""
        found = (" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))
        return [line for line in found if self.variables["SLIPWAY_DATA"] in line]

    def work(self, owner: str = "", name: str = "", left: int = 0) -> tuple[int, list[str]]:
        return self.run(WORK, owner, name, str(left))


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an upload whose conversion is wanted."""
    data = tmp_path_factory.mktemp("inspected") / "data"
    migrate(data)
    with environment(read_lock(LOCKS / "onnx.txt"), data / "environments", lambda percent, step: None):
        Workers(data).run(PREPARE, content=dense_bytes())
    return data


@pytest.fixture
def workers(inspected: Path, tmp_path: Path) -> Workers:
    return Workers(shutil.copytree(inspected, tmp_path / "data", symlinks=True))


CONVERTED = ["inspected", "['1/model.onnx']", "['1']", ""]


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
        "['dense.onnx']",
        "['0']",
        "the program was killed: perhaps the machine has too little memory",
    ]
    assert workers.work()[1] == CONVERTED
