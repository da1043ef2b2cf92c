"""A real installation is backed up while it runs; the backup is killed, damaged, and restored on SQLite and PostgreSQL."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.dashboard.supervisor.test_up import sign_in
from tests.support import engines
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_process import PATIENCE_S, ROOT, START_TIMEOUT_S, wait_until
from tests.support.up_process import Up

pytestmark = pytest.mark.long

PASSWORD = "a long password of backups"
GIVEN = {"SLIPWAY_ADMIN_PASSWORD": PASSWORD, "SERVING_COMPILED": "no"}
KEYS = ("secret_key", "control_key", "infer_key")
PASSPHRASE = {"SLIPWAY_BACKUP_PASSPHRASE": "of the backups"}
IMAGE = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [n % 7 for n in range(64)]}]}
# Rows of which the restored installation has its own: its server, lease, audit trail, and expired uploads.
OWN = {"dashboard.ServerState", "dashboard.WatchLease", "dashboard.AuditEntry", "dashboard.Upload"}
PEOPLE = """
import django; django.setup()
from django.contrib.auth.models import User
from dashboard.access.authorisation import SYSTEM
from dashboard.accounts.tokens import token_create
from dashboard.models import Job
from dashboard.shared.choices import JobState
person = User.objects.create_superuser("ada", password="x")
print(token_create(user=person, actor=SYSTEM, name="of ada", rights=["read"])[1])
Job.objects.create(kind="publish", title="of ada", params={"upload": "0" * 32}, to_send=True)
"""


class House(NamedTuple):
    """An installation that was backed up while it ran, then once more. said: what the two backups said."""

    up: Up
    store: Path
    said: list[str]
    token: str
    answer: Any


def ran(up: Up, *command: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**up.environment, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def backed_up(up: Up, store: Path | str, **environment: str) -> str:
    code, said = ran(up, "manage.py", "backup", str(store), **{**PASSPHRASE, **environment})
    assert code == 0, said
    return said


def restored(up: Up, store: Path | str, **environment: str) -> str:
    code, said = ran(up, "manage.py", "restore", str(store), **{**PASSPHRASE, **environment})
    assert code == 0, said
    return said


def infer(up: Up) -> Any:
    answer = httpx.post(f"{up.http_url}/v2/models/digits/infer", json=IMAGE, trust_env=False, timeout=PATIENCE_S)
    return answer.json()["outputs"]


def rows(store: Path) -> dict[str, list[Any]]:
    """Return the rows of the newest backup, by table."""
    manifest = json.loads(max((store / "backups").iterdir()).read_bytes())
    return {
        label: [
            dict(zip(table["columns"], json.loads(line), strict=True))
            for block in table["blocks"]
            for line in gzip.decompress((store / "objects" / block).read_bytes()).splitlines()
        ]
        for label, table in manifest["tables"].items()
    }


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    root = tmp_path_factory.mktemp("backups")
    with Up(root / "original", **GIVEN) as up:
        up.prepared(wanted=["digits"]).start()
        said = [backed_up(up, root / "store")]
        answer = infer(up)
        up.stop()
        code, token = ran(up, "-c", PEOPLE)
        assert code == 0, token
        said.append(backed_up(up, root / "store"))
        yield House(up, root / "store", said, token.strip(), answer)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "restored", **GIVEN) as up:
        yield up


def test_a_second_backup_reads_and_stores_only_what_is_new(house: House):
    first, second = (line for said in house.said for line in said.splitlines() if line.startswith("Backup "))
    files = sum(path.stat().st_size for path in (house.up.data / "models").rglob("*") if path.is_file())
    assert f"read: {files / 1e3:.1f} KB" in first
    assert "read: 0.0 KB" in second
    names = [path.name for path in (house.store / "objects").iterdir()]
    assert len(names) == len(set(names))
    assert all(path.stat().st_mode & 0o077 == 0 for path in house.store.rglob("*") if path.is_file())


def test_keys_are_in_the_backup_only_as_a_secret_of_the_passphrase(house: House, tmp_path: Path):
    content = b"".join(path.read_bytes() for path in (house.store / "backups").iterdir())
    for name in KEYS:
        assert (house.up.data / name).read_bytes() not in content
    said = backed_up(house.up, tmp_path / "other", SLIPWAY_BACKUP_PASSPHRASE="")
    assert "The keys are left out, because SLIPWAY_BACKUP_PASSPHRASE is not set." in said


def test_a_restored_installation_answers_as_the_original_once_it_is_told_to_control(house: House, empty: Up):
    code, said = ran(empty, "manage.py", "restore", str(house.store), SLIPWAY_BACKUP_PASSPHRASE="wrong")
    assert (code, "passphrase is not the one" in said) == (1, True)
    assert "controls nothing" in restored(empty, house.store)
    code, said = ran(empty, "manage.py", "restore", str(house.store), **PASSPHRASE)
    assert (code, "an empty installation" in said) == (1, True)
    for name in KEYS:
        assert (empty.data / name).read_bytes() == (house.up.data / name).read_bytes()

    empty.start()
    assert empty.running("serving") == empty.running("watch") == empty.running("celery") == []
    with httpx.Client(base_url=empty.dashboard_url, trust_env=False, timeout=PATIENCE_S) as client:
        bearer = {"Authorization": f"Bearer {house.token}"}
        models = client.get("/api/v1/models", headers=bearer).json()["results"]
        assert "digits" in {model["name"] for model in models}
        assert sign_in(client, empty, PASSWORD).status_code == 302
        assert "and controls nothing" in client.get("/models/").text
        code, said = ran(empty, "manage.py", "accept", "control")
        assert (code, "controls its servers now" in said) == (0, True)
        assert "and controls nothing" not in client.get("/models/").text
    assert empty.query("SELECT state FROM dashboard_job WHERE title = 'of ada'") == [("queued",)]
    empty.stop()

    empty.start()
    assert infer(empty) == house.answer
    wait_until(
        lambda: empty.query("SELECT state FROM dashboard_job WHERE title = 'of ada'") == [("failed",)],
        what="the job, which finds no upload",
    )


def test_a_killed_backup_leaves_the_earlier_ones_whole_and_is_collected(house: House, tmp_path: Path):
    store, archive = tmp_path / "store", house.up.data / "archive" / "large"
    shutil.copytree(house.store, store)
    archive.mkdir(parents=True)
    try:
        for number in range(400):
            (archive / str(number)).write_bytes(os.urandom(100_000))
        known, backups = set(os.listdir(store / "objects")), os.listdir(store / "backups")
        process = subprocess.Popen(
            [sys.executable, "manage.py", "backup", str(store)],
            cwd=ROOT,
            env={**house.up.environment, **PASSPHRASE},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: set(os.listdir(store / "objects")) > known, START_TIMEOUT_S, "a new object")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        assert os.listdir(store / "backups") == backups
        code, said = ran(house.up, "manage.py", "backup", str(store), "--prune")
        assert (code, "Removed 0 backups" in said) == (0, True), said
        assert set(os.listdir(store / "objects")) == known
        code, said = ran(house.up, "manage.py", "backup", str(store), "--prune", "--keep", "1")
        assert (code, "Removed 1 backups" in said) == (0, True), said
        code, said = ran(house.up, "manage.py", "restore", str(store), "--verify")
        assert (code, "is whole" in said) == (0, True), said
    finally:
        shutil.rmtree(archive)


def test_a_damaged_backup_is_refused_and_the_broken_off_restore_goes_on_from_a_whole_one(house: House, empty: Up):
    store = empty.data.parent / "store"
    shutil.copytree(house.store, store)
    manifest = json.loads(max((store / "backups").iterdir()).read_bytes())
    path, size, *_, sha256 = next(file for file in manifest["files"] if file[0].endswith(".onnx"))
    (store / "objects" / sha256).write_bytes(bytes(size))
    code, said = ran(empty, "manage.py", "restore", str(store), "--verify")
    assert (code, f"{path} was changed in the backup" in said) == (1, True), said
    code, said = ran(empty, "manage.py", "restore", str(store))
    assert (code, f"The file {path} was changed in the backup" in said) == (1, True), said
    assert not (empty.data / path).exists()
    for command in ("watch", "up"):
        code, said = ran(empty, "manage.py", command)
        assert (code, "A restore is under way here, or was broken off" in said) == (1, True), said
    assert "The keys were restored without a passphrase" in restored(empty, house.store, SLIPWAY_BACKUP_PASSPHRASE="")
    assert (empty.data / path).read_bytes() == (house.up.data / path).read_bytes()


@pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}")
def test_a_backup_goes_through_a_bucket_from_sqlite_to_postgresql_and_back_without_a_difference(
    house: House, tmp_path: Path
):
    with ObjectStore() as bucket, engines.postgres() as database:
        given = {
            "DATABASE_URL": engines.new_database(database.port, "restored"),
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            **GIVEN,
        }
        address = f"s3://127.0.0.1:{bucket.port}/{BUCKET}/backups"
        backed_up(house.up, address, **{name: given[name] for name in given if name.startswith("AWS")})
        with Up(tmp_path / "moved", **given) as moved:
            restored(moved, address)
            code, said = ran(moved, "manage.py", "backup", address, **PASSPHRASE)
            assert (code, "holds backups of another installation" in said) == (1, True), said
            backed_up(moved, tmp_path / "store")
    backed_up(house.up, tmp_path / "original")
    before, after = rows(tmp_path / "original"), rows(tmp_path / "store")
    assert {label for label in before if before[label] != after[label]} <= OWN
    assert len(after["auth.User"]) == 2
