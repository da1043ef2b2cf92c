"""A backup while files change, a backup that somebody has written, and an installation without control."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from dashboard.access import control
from dashboard.backups import manifest as manifests
from dashboard.backups.making import backup_make
from dashboard.backups.restoring import _targets, backup_find
from dashboard.backups.sealed import seal, unseal
from dashboard.backups.store import store_at
from dashboard.jobs.tasks import run_job
from dashboard.models import Installation, Job, Version, WatchLease
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.watch.lease import Lease

Publish = Callable[..., Version]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def shared(settings: Any, data_folder: Path) -> Path:
    settings.SHARED_DIR = settings.DATA_DIR = data_folder
    return data_folder


def make(address: Path, say: Any = lambda line: None) -> manifests.Manifest:
    return backup_make(address=str(address), without=(), passphrase="", say=say).manifest


def test_a_version_that_is_published_meanwhile_is_in_the_backup_with_its_files(published: Publish, tmp_path: Path):
    published("first")

    def publish(line: str) -> None:
        if line == "Reading the database.":
            published("second")

    made = make(tmp_path / "store", publish)
    assert made.unsettled == []
    assert "models/second/1/model.onnx" in {file.path for file in made.files}
    assert made.tables["dashboard.Version"].rows == 2


def test_a_working_copy_that_differs_from_the_bucket_is_not_backed_up(
    published: Publish, settings: Any, shared: Path, tmp_path: Path
):
    published("first")
    path = shared / "models" / "first" / "1" / "model.onnx"
    content, settings.REPOSITORY_BUCKET = path.read_bytes(), "s3://bucket/prefix"
    path.unlink()
    with pytest.raises(Conflict, match=r"models/first/1/model\.onnx in the shared folder is not what the bucket"):
        make(tmp_path / "store")
    path.write_bytes(bytes(len(content)))
    with pytest.raises(Conflict, match="adopt the change of first"):
        make(tmp_path / "store")
    assert manifests.names(store_at(str(tmp_path / "store"))) == []
    path.write_bytes(content)
    assert path.relative_to(shared).as_posix() in {file.path for file in make(tmp_path / "store").files}


def test_files_that_change_all_the_time_end_with_the_name_of_their_model(shared: Path, tmp_path: Path):
    (shared / "models" / "busy").mkdir()

    def change(line: str) -> None:
        with (shared / "models" / "busy" / "file").open("a") as file:
            file.write("more")

    made = make(tmp_path / "store", change)
    assert made.unsettled == ["busy"]


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["models/../../etc/passwd", 1, 1, 0o600, "0" * 64]]},
        {"files": [["/etc/passwd", 1, 1, 0o600, "0" * 64]]},
        {"files": [["models/x", 1, 1, 0o600, "../../keys"]]},
        {"folders": ["logs"]},
        {"tables": {"auth.User": {}}},
    ],
)
def test_a_manifest_that_leads_elsewhere_is_damaged(change: dict[str, Any], tmp_path: Path):
    made = make(tmp_path)
    path = tmp_path / "backups" / f"{made.name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Invalid, match="is damaged"):
        backup_find(str(tmp_path), "")


def test_a_backup_of_a_newer_release_is_refused(tmp_path: Path):
    made = make(tmp_path)
    newer = replace(made, migrations={**made.migrations, "dashboard": [*made.migrations["dashboard"], "9999_later"]})
    assert ("dashboard", made.migrations["dashboard"][-1]) in _targets(MigrationExecutor(connection), made)
    with pytest.raises(Invalid, match="9999_later"):
        _targets(MigrationExecutor(connection), newer)


def test_a_full_or_forbidden_folder_of_backups_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", "/proc/x"):
        with pytest.raises(Conflict, match="the folder of backups cannot be"):
            store_at(str(folder)).put("objects/x", tmp_path / "file")


def test_a_sealed_key_opens_only_with_its_passphrase():
    sealed = seal("right", {"key": "value"})
    assert unseal("right", sealed) == {"key": "value"}
    for passphrase, content in (("wrong", sealed), ("right", sealed | {"salt": seal("right", {})["salt"]})):
        with pytest.raises(Invalid, match="passphrase is not the one"):
            unseal(passphrase, content)


def test_without_control_nobody_leads_and_no_job_runs_until_it_is_accepted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "_controls", False)
    Installation.objects.create(pk=1, identity="x", restored="20261129T103851Z")
    job, lease = Job.objects.create(kind="publish", params={"upload": "0" * 32}), Lease()
    assert not lease.take()
    run_job(job.pk)
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    WatchLease.objects.create(pk=1, number=7, until="2000-01-01T00:00Z")
    assert control.control_accept()
    assert not control.control_accept()
    assert lease.take()
    assert lease.number > 1_000_000  # servers refuse the original's watchers
