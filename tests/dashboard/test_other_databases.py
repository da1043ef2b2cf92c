"""The same services on PostgreSQL and Redis, moved there by two variables; the test starts both itself."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

POSTGRES_BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
SCRIPT = """
import time
from concurrent.futures import ThreadPoolExecutor
from django.contrib.auth import get_user_model
from django.db import connection, connections
from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.models import *
from dashboard.catalog.selectors import *
from dashboard.accounts.accounts import administrator_ensure
from dashboard.configuration.services import config_apply
from dashboard.configuration.drift import drift_check
from dashboard.examples.selectors import golden_checks
from dashboard.examples.services import example_create
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.uploads.publication import publications_recover, upload_publish
from dashboard.accounts.tokens import token_authenticate, token_create
from dashboard.shared import changes
from dashboard.uploads.services import upload_complete, upload_create, upload_receive_chunk, uploads_expire
from dashboard.versions.moves import version_archive
from dashboard.releases.selectors import wanted_versions
from dashboard.versions.services import release_go_back, release_promote
from tests.dashboard.conftest import CONFIG, relu_bytes, serve

assert connection.vendor == "postgresql"
administrator_ensure()
user = get_user_model().objects.get()
_, secret = token_create(user=user, actor=Actor(user=user), name="t", rights=["read"])
assert token_authenticate(secret=secret)

def publish(number):
    content = relu_bytes()
    upload = upload_create(actor=SYSTEM, model_name="relu", files=[{"path": "m.onnx", "size": len(content)}])
    upload_receive_chunk(upload=upload, number=0, offset=0, chunk=content, actor=SYSTEM)
    upload_complete(upload=upload, actor=SYSTEM)
    deadline = time.monotonic() + 120
    while upload.state in ("received", "inspecting"):
        assert time.monotonic() < deadline, Job.objects.values()
        time.sleep(0.1)
        upload.refresh_from_db()
    assert upload.state == "inspected", upload.error
    job = upload_publish(upload=upload, actor=SYSTEM, config_text=CONFIG, load=True)
    assert job.state == "succeeded", job.error
    connections.close_all()
    return job.result["version"]

with ThreadPoolExecutor(3) as pool:
    assert sorted(pool.map(publish, range(3))) == [1, 2, 3]
model = model_get("relu")
assert wanted_versions(model) == [3], wanted_versions(model)
x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.1, "NaN", -1e30, 0]}
texts = {"name": "y", "datatype": "BYTES", "shape": [1], "data": ["a\\0b"]}
kept = dict(request={"inputs": [x]}, expected={"outputs": [texts]}, golden=True)
example_create(model=model, actor=SYSTEM, name="odd", **kept)
assert golden_checks(model)[0]["request"]["inputs"][0]["data"] == [0.1, "NaN", -1e30, 0.0]
serve(model)
release_promote(version=version_get(model, 1), actor=SYSTEM)
release_go_back(model=model, actor=SYSTEM)
assert wanted_versions(model) == [3]
serve(model)
config_apply(model=model, text=model.releases.first().text + "# more\\n", actor=SYSTEM)
version_archive(version=version_get(model, 1), actor=SYSTEM)
assert drift_check() == [] and publications_recover() == [] and uploads_expire() == 0
jobs_requeue_lost()
assert models_overview()[0].wanted_versions == [3]
assert {"dashboard_version", "dashboard_job", "dashboard_auditentry"} <= set(changes.marks()), "what pages follow"
print("all is well")
"""

pytestmark = pytest.mark.skipif(
    POSTGRES_BIN is None or shutil.which("redis-server") is None,
    reason="needs Debian's packages postgresql and redis-server",
)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)


@pytest.fixture
def postgres() -> Iterator[str]:
    """An empty cluster's address. PostgreSQL does not run as root, so `nobody` runs it, in a folder that `nobody` reaches."""
    assert POSTGRES_BIN is not None
    folder, port = Path(tempfile.mkdtemp(prefix="slipway-postgres-")), free_port()
    as_user = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    if as_user:
        shutil.chown(folder, "nobody", "nogroup")
    initdb = [
        POSTGRES_BIN / "initdb",
        "-D",
        folder / "data",
        "-U",
        "slipway",
        "-A",
        "trust",
        "--no-sync",
        "--no-locale",
        "-EUTF8",
    ]
    command = [POSTGRES_BIN / "postgres", "-D", folder / "data", "-k", "", "-h", "127.0.0.1", "-p", str(port), "-F"]
    ready = [POSTGRES_BIN / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"]
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, folder)
        subprocess.run(initdb, cwd=folder, check=True, capture_output=True, timeout=START_TIMEOUT_S, **as_user)
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user)
        ends.callback(stop, server)
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, what="PostgreSQL's answer")
        yield f"postgres://slipway@127.0.0.1:{port}/postgres"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(port), what="Redis's answer")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        stop(server)


def test_the_services_work_on_postgresql_with_a_worker_behind_redis(postgres: str, redis: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SLIPWAY_DATA": str(tmp_path / "data"),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "DATABASE_URL": postgres,
        "REDIS_URL": redis,
    }
    where = {"cwd": settings.BASE_DIR, "env": environment}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], check=True, timeout=START_TIMEOUT_S, **where)
    command = [sys.executable, "-m", "celery", "-A", "dashboard", "worker", "--pool=solo", "--loglevel=ERROR"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, **where)
    try:
        shell = [sys.executable, "manage.py", "shell", "--no-imports", "-c", SCRIPT]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=2 * START_TIMEOUT_S, check=False, **where)
        assert done.stdout.strip() == "all is well", done.stderr
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)
