"""People with different rights, a repository of the test's own, and uploads made the way a client makes them."""

import contextlib
import hashlib
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.db.models.signals import post_migrate
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import VIEWERS, Actor
from dashboard.accounts.token_use import TokenUse
from dashboard.jobs import services as jobs
from dashboard.jobs.runner import job_run
from dashboard.models import (
    Job,
    Model,
    ModelState,
    Release,
    ReleaseSpan,
    Server,
    ServerEnvironment,
    ServerState,
    Upload,
    Version,
)
from dashboard.models.environment import PRODUCTION
from dashboard.postgresql import relay
from dashboard.releases import life
from dashboard.releases.selectors import wanted_release
from dashboard.servers.services import server_ensure_local
from dashboard.shared import heartbeat
from dashboard.uploads import inspector
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_complete, upload_create, upload_receive_chunk
from repository.config.document import Document
from tests.dashboard.inspections import remembering
from tests.dashboard.web_process import migrated
from tests.support import engines, model_factory


@pytest.fixture(autouse=True)
def data_folder(settings: Any, tmp_path: Path) -> Path:
    for name, folder in (
        ("MODEL_REPOSITORY", "models"),
        ("STAGING_DIR", "staging"),
        ("ARCHIVE_DIR", "archive"),
        ("BATCH_DIR", "batches"),
        ("CAPTURE_DIR", "captures"),
        ("ENVIRONMENTS_DIR", "environments"),
    ):
        path = tmp_path / folder
        path.mkdir()
        setattr(settings, name, path)
    settings.AUTH_FILE = tmp_path / "auth.json"
    settings.USAGE_LOG = tmp_path / "usage"
    settings.WANTED_MODELS_FILE = tmp_path / "wanted.json"
    settings.HEARTBEAT_DIR = tmp_path / "heartbeats"
    settings.HEARTBEAT_DIR.mkdir()
    heartbeat._over.clear()  # a test may have ended the heartbeats of this process
    return tmp_path


def beaten(name: str) -> Path:
    """Give a heartbeat, and return its file."""
    heartbeat.beat(name)
    (path,) = settings.HEARTBEAT_DIR.glob(f"{name}.{os.getpid()}.*")
    return Path(path)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> Iterator[None]:
    """Migrate once in a run: each process copies the database into its memory, where Django finds every migration done."""
    if connection.vendor != "sqlite":
        yield
        return
    name = connection.creation._get_test_db_name()  # the address of a database that all connections of a process share
    with (
        contextlib.closing(sqlite3.connect(migrated() / "db.sqlite3")) as migrated_one,
        contextlib.closing(sqlite3.connect(name, uri=True, check_same_thread=False)) as in_memory,
    ):
        migrated_one.backup(in_memory)
        yield  # a database in memory goes with its last connection


@pytest.fixture(scope="session", autouse=True)
def no_relay() -> None:
    """With PostgreSQL, the thread of `relay` would ask it between tests, too, when it is closed to them."""
    relay._begun.acquire(blocking=False)


@pytest.fixture(scope="session", autouse=True)
def rows_of_migrations() -> Iterator[None]:
    """A transactional test empties every table, and Django makes permissions anew after that; what migrations made comes with
    them."""

    def make(**_: Any) -> None:
        Group.objects.get_or_create(name=VIEWERS)
        ServerEnvironment.objects.get_or_create(name=PRODUCTION)

    post_migrate.connect(make, sender=apps.get_app_config("dashboard"))
    yield
    post_migrate.disconnect(make, sender=apps.get_app_config("dashboard"))


@pytest.fixture(autouse=True)
def no_later_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread writes when tokens were used: it would do so after the test, to another one's database."""
    monkeypatch.setattr(TokenUse, "_write_soon", lambda self: None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[engines.Engine]:
    """A PostgreSQL in which each module makes databases of its own. Who freezes it lets it go on."""
    with engines.postgres("max_connections=200") as running:
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def unqueued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No broker: the jobs that would have been announced to a worker."""
    announced: list[int] = []
    monkeypatch.setattr(jobs, "_announce", lambda delay, job_id: announced.append(job_id))
    return announced


@pytest.fixture
def person(db: None) -> Callable[..., Any]:
    """person("operate", "upload_data"): somebody who may do that."""

    def make(*permissions: str, name: str = "", **more: Any) -> Any:
        users = get_user_model().objects
        user = users.create_user(name or f"person{users.count()}", password="a long secret", **more)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return user

    return make


@pytest.fixture
def actor(person: Callable[..., Any]) -> Actor:
    """A person with every right but that of an administrator."""
    return Actor(user=person("operate", "upload_data", "upload_code", name="olga"))


@pytest.fixture
def api(actor: Actor) -> APIClient:
    client = APIClient(enforce_csrf_checks=False)
    client.force_authenticate(actor.user)
    return client


def relu_bytes(width: int = 4, *, output: str = "y") -> bytes:
    """An ONNX model x[-1, width] -> ReLU -> y."""
    shape = ["batch", width]
    node = model_factory.helper.make_node("Relu", ["x"], [output])
    return model_factory.onnx_bytes([node], [("x", "FP32", shape)], [(output, "FP32", shape)])


@pytest.fixture
def received(actor: Actor, unqueued: list[int]) -> Callable[..., Upload]:
    """received({"model.onnx": bytes}): an upload of which every byte arrived."""

    def send(files: dict[str, bytes], model_name: str = "relu", by: Actor = actor) -> Upload:
        rows = [
            {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in files.items()
        ]
        upload = upload_create(actor=by, model_name=model_name, files=rows)
        for number, content in enumerate(files.values()):
            if content:
                upload_receive_chunk(upload=upload, number=number, offset=0, chunk=content, actor=by)
        return upload

    return send


@pytest.fixture
def inspected(received: Callable[..., Upload], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Upload]:
    """The same, inspected by the real `python -m serving.inspect`."""
    monkeypatch.setattr(inspector, "run", remembering(inspector.run))

    def send(files: dict[str, bytes] | None = None, model_name: str = "relu", **more: Any) -> Upload:
        upload = received(files or {"model.onnx": relu_bytes()}, model_name, **more)
        job = upload_complete(upload=upload, actor=more.get("by") or Actor(user=upload.user))
        job_run(job_id=job.pk)
        upload.refresh_from_db()
        return upload

    return send


@pytest.fixture
def published(received: Callable[..., Upload], actor: Actor) -> Callable[..., Version]:
    """published(): one more version of `relu`; published(load=True, make_live=True), ...

    Inspection has its own tests; here its answer is put in by hand.
    """

    def publish(model_name: str = "relu", config_text: str | None = None, **asked: Any) -> Version:
        upload = received({"model.onnx": relu_bytes()}, model_name)
        as_inspected(upload)
        text = CONFIG if config_text is None else config_text
        job = upload_publish(upload=upload, actor=actor, document=Document.read(text), **{"load": False, **asked})
        return version_from(job)

    return publish


def version_from(job: Job) -> Version:
    """What a publication that ran at once has made."""
    assert job.state == "succeeded", job.error
    return Version.objects.get(upload=job.params["upload"])


@pytest.fixture
def server(db: None) -> Server:
    server = Server.objects.create(
        name="local",
        http_url="http://127.0.0.1:1",
        grpc_url="127.0.0.1:1",
        metrics_url="http://127.0.0.1:1",
        bundled=True,
    )
    ServerState.objects.create(server=server, state="ready", started_at=timezone.now())
    return server


@pytest.fixture
def relu(published: Callable[..., Version], server: Server) -> Version:
    version = published(load=True, make_live=True)
    ModelState.objects.create(server=server, model_name="relu", version=version.number, state="READY")
    return version


def serve(model: Model, server: Server | None = None) -> Release:
    """What `watch` writes once the wanted release of a model is ready, beside those of other models; return that release."""
    server = server or server_ensure_local()
    release = wanted_release(model)
    assert release is not None
    others = ReleaseSpan.objects.filter(server=server, ended_at=None).values_list("model_id", "release_id")
    life.passed(release=release, server=server)
    life.serving(server=server, releases={**dict(others), model.pk: release.pk})
    return release


@pytest.fixture
def as_person(person: Callable[..., Any]) -> Callable[..., Client]:
    def make(*permissions: str, **more: Any) -> Client:
        client = Client()
        client.force_login(person(*permissions, **more))
        return client

    return make


def text_of(client: Client, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.content.decode()[-2000:]
    return re.sub(r"\s+", " ", answer.content.decode())


CONFIG = """# The widest ReLU of the house.
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def as_inspected(upload: Upload, **proposal: Any) -> Upload:
    """The result of the inspection of relu_bytes()."""
    version = upload.folder / "version"
    version.mkdir()
    (version / "model.onnx").write_bytes((upload.folder / "files" / "0").read_bytes())
    tensors = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }
    upload.proposal = {
        "format": "onnx",
        "filename": "model.onnx",
        "executes_code": False,
        "problems": [],
        "config": CONFIG,
        **tensors,
        **proposal,
    }
    upload.contents = {"files": ["model.onnx"]}
    upload.state = "inspected"
    upload.save()
    return upload
