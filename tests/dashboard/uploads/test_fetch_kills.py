"""A worker that is killed while it fetches leaves bytes that count, and the next one goes on behind them."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from tests.dashboard.uploads.file_server import WebFile, file_server
from tests.dashboard.web_process import migrate
from tests.support.forks import Forks

pytestmark = pytest.mark.long

SIZE = 400_000
# An attempt of a worker, which kills itself at its n-th call of a function that writes.
WORK = """
import os, signal
import django; django.setup()
from datetime import timedelta
from django.contrib.auth import get_user_model
from dashboard.access.authorisation import Actor
from dashboard.jobs.context import JobContext
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Job, Upload
from dashboard.uploads import chunks, fetching
from dashboard.uploads.sources import base, http_client
from repository.files import storage

http_client.PIECE_BYTES, fetching.CHECKPOINT_BYTES = 20_000, 50_000

def counted(owner, name):
    real = getattr(owner, name)
    def call(*given, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)
    setattr(owner, name, call)

for owner, name in ((chunks, "append"), (storage, "sync"), (JobContext, "report"), (JobContext, "progress"),
                    (fetching, "upload_complete")):
    counted(owner, name)

def attempt(deadly, address):
    global left
    left = 0  # preparing counts for nothing
    if not Upload.objects.exists():
        actor = Actor(user=get_user_model().objects.create_superuser("olga"))
        fetching.upload_fetch(actor=actor, model_name="relu", source={"kind": "url", "address": address})
    jobs_requeue_lost(older_than=timedelta(0))
    left = deadly
    job = Job.objects.get(kind="fetch")
    before = Upload.objects.get().received_bytes
    job_run(job_id=job.pk)
    job.refresh_from_db()
    upload = Upload.objects.get()
    [file] = upload.files.all()
    inspections = Job.objects.filter(kind="inspect").count()
    return job.state, upload.state, file.received, file.sha256, inspections, before
"""


def test_a_fetch_that_is_killed_at_each_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    data = tmp_path / "data"
    migrate(data)
    with file_server() as server:
        server.files["/model.onnx"] = WebFile(content)
        environment = {
            **os.environ,
            "SLIPWAY_DATA": str(data),
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "SLIPWAY_SOURCE_URLS": server.url,
        }
        killed = 0
        with Forks(WORK, environment) as workers:
            # Each attempt gets a little further, and the first ones die before anything was recorded.
            for deadly in (1, 7, 9, 12, 14, 16, 17, 0):
                status, said = workers.run(deadly, f"{server.url}/model.onnx")
                if status == 0:
                    break
                assert status == -signal.SIGKILL, said
                killed += 1
        assert killed >= 4
        job, upload, received, sha256, inspections, before = said
        assert (job, upload, received, inspections) == ("succeeded", "received", SIZE, 1)
        assert sha256 == hashlib.sha256(content).hexdigest()
        assert before >= 50_000  # the last attempt did not begin again
        [path] = (data / "staging").glob("*/files/0")
        assert path.read_bytes() == content
        assert any(start.startswith("bytes=") for start in server.starts())
