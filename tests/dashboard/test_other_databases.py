"""The same services on PostgreSQL and Redis, moved there by two variables; the tests start both themselves."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
import pytest
from django.conf import settings

from tests.dashboard.web_process import finished, listening, migrated_database, run
from tests.support import engines
from tests.support.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

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
from repository.config.document import Document
from dashboard.configuration.drift import drift_check
from dashboard.examples.selectors import golden_checks
from dashboard.examples.services import example_create
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.shared.exceptions import Conflict
from dashboard.uploads.publication import publications_recover, upload_publish
from dashboard.accounts.tokens import token_authenticate, token_create
from dashboard.postgresql import references
from dashboard.shared import changes
from dashboard.uploads import services as uploads
from dashboard.uploads.services import upload_cancel, upload_complete, upload_create, upload_receive_chunk, uploads_expire
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
    job = upload_publish(upload=upload, actor=SYSTEM, document=Document.read(CONFIG), load=True)
    assert job.state == "succeeded", job.error
    connections.close_all()
    return job.result["version"]

def announce(number):
    try:
        return upload_create(actor=Actor(user=user), model_name="m", files=[{"path": "m.onnx", "size": 1}])
    except Conflict:
        return None
    finally:
        connections.close_all()

bound, uploads.OF_A_PERSON = uploads.OF_A_PERSON, uploads.Announced(uploads=3, names=100, characters=10_000)
with ThreadPoolExecutor(8) as pool:
    made = [one for one in pool.map(announce, range(40)) if one]
assert len(made) == 3, made
uploads.OF_A_PERSON = bound
for one in made:
    upload_cancel(upload=one, actor=Actor(user=user))

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
config_apply(model=model, document=Document.read(model.releases.first().text + "# more\\n"), actor=SYSTEM)
version_archive(version=version_get(model, 1), actor=SYSTEM)
assert drift_check() == [] and publications_recover() == [] and uploads_expire() == 0
jobs_requeue_lost()
assert summaries_of(models_standing())[0].wanted_versions == [3]
assert {"dashboard_version", "dashboard_job", "dashboard_auditentry"} <= set(changes.marks()), "what pages follow"

references.SINCE = "0001"  # as if an earlier release knew none of the tables
references.delete_in_database()
references.delete_in_database()
Upload.objects.update(job=None)
with connection.cursor() as cursor:
    cursor.execute("DELETE FROM dashboard_model")
assert not Version.objects.exists() and not Release.objects.exists() and Job.objects.filter(model=None).exists()
print("all is well")
"""

pytestmark = pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}")


@pytest.fixture(scope="module")
def cluster(postgres: engines.Engine) -> int:
    """The port of a PostgreSQL."""
    return postgres.port


def test_the_services_work_on_postgresql_with_a_worker_behind_redis(cluster: int, tmp_path: Path) -> None:
    with engines.redis() as redis:
        services_work(migrated_database(cluster, "services"), f"redis://127.0.0.1:{redis.port}/0", tmp_path)


def services_work(database: str, redis: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SLIPWAY_DATA": str(tmp_path / "data"),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "DATABASE_URL": database,
        "REDIS_URL": redis,
    }
    where = {"cwd": settings.BASE_DIR, "env": environment}
    command = [sys.executable, "-m", "celery", "-A", "dashboard", "worker", "--pool=solo", "--loglevel=ERROR"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, **where)
    try:
        shell = [sys.executable, "manage.py", "shell", "--no-imports", "-c", SCRIPT]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=2 * START_TIMEOUT_S, check=False, **where)
        assert done.stdout.strip() == "all is well", done.stderr
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)


# -- the sessions of a web process -------------------------------------------------------------------------------------
SESSIONS = 5
PREPARE = """
from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import token_create
from django.contrib.auth import get_user_model
administrator_ensure()
user = get_user_model().objects.get()
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read"])[1])
"""


class Dashboard:
    """A web process on a PostgreSQL database of its own."""

    def __init__(self, address: str, process: psutil.Process, token: str, database: str) -> None:
        self.address, self.process, self.database = address, process, database
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str = "/api/v1/models") -> httpx.Response:
        with httpx.Client(base_url=self.address, headers=self._headers, trust_env=False, timeout=PATIENCE_S) as client:
            return client.get(path)

    def sessions(self) -> int:
        """Return the number of connections of the web process. PostgreSQL counts a session for some time after its end."""
        port = urlsplit(self.database).port
        open_ones = [each for each in self.process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
        return sum(1 for each in open_ones if each.raddr and each.raddr.port == port)


@pytest.fixture(scope="module")
def dashboard(cluster: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    data, database = tmp_path_factory.mktemp("web") / "data", migrated_database(cluster, "web")
    with contextlib.ExitStack() as running:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("DATABASE_URL", database)
            environment.setenv("SLIPWAY_DATABASE_SESSIONS", str(SESSIONS))
            environment.setenv("SLIPWAY_DATABASE_STATEMENT_TIMEOUT", "2")
            token = finished(data, "manage.py", "shell", "--no-imports", "-c", PREPARE)
            address, process = running.enter_context(listening(data, "-m", "daphne"))
        yield Dashboard(address, process, token, database)


def test_many_requests_at_once_share_a_few_sessions(dashboard: Dashboard) -> None:
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.005):
            most = max(most, dashboard.sessions())

    watching = threading.Thread(target=watch)
    watching.start()
    with ThreadPoolExecutor(100) as clients:
        answers = list(clients.map(lambda _: dashboard.get(), range(100)))
    over.set()
    watching.join()
    assert {answer.status_code for answer in answers} == {200}
    assert 0 < most <= SESSIONS + 1, "one more asks whether a slow database answers"
    assert dashboard.sessions() <= SESSIONS, "the pool keeps some"
    told = re.findall(r'slipway_web_database_sessions{state="(\w+)"} (\d+)', dashboard.get("/api/v1/web-metrics").text)
    assert [state for state, _ in told] == ["open", "free", "waiting"]
    assert 1 <= int(told[0][1]) <= SESSIONS


def test_readiness_waits_for_no_session_while_pages_use_all(dashboard: Dashboard) -> None:
    """Else a load balancer would take a process out that is only busy, and end all its requests."""
    with psycopg.connect(dashboard.database) as other, ThreadPoolExecutor(SESSIONS) as clients:
        other.execute("LOCK TABLE dashboard_model IN ACCESS EXCLUSIVE MODE")
        waiting = [clients.submit(dashboard.get, "/api/v1/models/any") for _ in range(SESSIONS)]
        wait_until(lambda: dashboard.sessions() >= SESSIONS, what="all sessions are used")
        assert [dashboard.get(path).status_code for path in ("/readyz", "/livez") * 3] == [200] * 6
        assert not any(one.done() for one in waiting)
        other.rollback()


def test_a_statement_that_takes_too_long_is_given_up(dashboard: Dashboard) -> None:
    with psycopg.connect(dashboard.database) as other:
        other.execute("LOCK TABLE dashboard_model IN ACCESS EXCLUSIVE MODE")
        refused = dashboard.get("/api/v1/models/any")  # the list of models may be cached since another test
        other.rollback()
    assert (refused.status_code, refused.headers.get("Retry-After")) == (503, "5"), refused.text
    assert "database does not answer" in refused.json()["error"]
    assert dashboard.get().status_code == 200


def test_a_database_that_takes_connections_and_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a time-out each request would hold a thread for as long as the other side holds the connection."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DATABASE_URL", f"postgres://slipway@127.0.0.1:{silent.getsockname()[1]}/postgres")
        monkeypatch.setenv("SLIPWAY_DATABASE_CONNECT_TIMEOUT", "2")
        with run(tmp_path / "data", "-c", ASKS_HEALTH) as process:
            said = process.communicate(timeout=PATIENCE_S)[0]
    assert said.strip() == "503 the database does not answer"


ASKS_HEALTH = """
import asyncio
import django
import httpx
django.setup()
from dashboard.web.health import READINESS, answer_health
async def ask():
    transport = httpx.ASGITransport(app=answer_health(None))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        return await client.get(READINESS)
answer = asyncio.run(ask())
print(answer.status_code, answer.json()["status"])
"""


def test_a_database_machine_that_vanishes_is_noticed_while_it_works_and_while_it_is_sent_to(
    cluster: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = f"postgres://slipway@127.0.0.1:{cluster}/postgres"
    monkeypatch.setenv("DATABASE_URL", database)
    assert finished(tmp_path / "data", "-c", SOCKET).split() == ["1", "30", "30000"]
    monkeypatch.setenv("DATABASE_URL", f"{database}?tcp_user_timeout=7000&keepalives_idle=1")
    assert finished(tmp_path / "data", "-c", SOCKET).split() == ["1", "21", "7000"]


SOCKET = """
import socket
import django
django.setup()
from django.db import connection
connection.ensure_connection()
ours = socket.socket(fileno=connection.connection.fileno())
of_tcp = [ours.getsockopt(socket.IPPROTO_TCP, name) for name in (
    socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)]
print(ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), of_tcp[0] + of_tcp[1] * of_tcp[2], of_tcp[3])
ours.detach()
"""
