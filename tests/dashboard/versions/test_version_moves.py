"""Archiving and restoring as jobs: small ones at once, large ones by a worker; broken off, the files are whole somewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from dashboard.access.authorisation import Actor
from dashboard.catalog import version_states
from dashboard.catalog.services import model_load
from dashboard.configuration.drift import drift_check
from dashboard.configuration.services import config_apply
from dashboard.jobs.progress import JobProgress
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.models import AuditEntry, Job, Version
from dashboard.releases.selectors import wanted_versions
from dashboard.shared.exceptions import Conflict
from dashboard.versions import moves as version_moves
from dashboard.versions.moves import moves_recover, version_archive, version_restore
from dashboard.versions.services import release_promote
from repository.config.document import Document
from repository.files import publish, storage
from tests.dashboard.conftest import CONFIG

pytestmark = pytest.mark.django_db


@pytest.fixture
def second(published: Callable[..., Version]) -> Version:
    """Version 2, which is not live; version 1 is."""
    published(load=True)
    return published()


@pytest.fixture
def to_a_worker(settings: Any, monkeypatch: pytest.MonkeyPatch, second: Version) -> None:
    """Treat every version as large, and the archive as on another disk."""
    settings.AT_ONCE_BYTES = 0
    monkeypatch.setattr(storage, "same_disk", lambda one, other: False)


def ended(job: Job) -> Job:
    job_run(job_id=job.pk)
    job.refresh_from_db()
    return job


def test_within_one_disk_it_is_done_when_the_request_ends(second: Version, actor: Actor, settings: Any) -> None:
    settings.AT_ONCE_BYTES = 0
    assert version_archive(version=second, actor=actor).state == "succeeded"
    assert second.state == "archived"
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.actor_name, entry.summary) == ("version.archive", "olga", "Archived version 2 of relu")


@pytest.mark.usefixtures("to_a_worker")
def test_a_large_version_is_moved_by_a_worker_and_nobody_touches_it_meanwhile(
    second: Version, actor: Actor, data_folder: Path
) -> None:
    job = version_archive(version=second, actor=actor)
    assert (job.state, job.title, second.state) == ("queued", "Archive version 2 of relu", "moving")
    with pytest.raises(Conflict, match="not published"):
        version_archive(version=second, actor=actor)
    with pytest.raises(Conflict, match="is moving; wait"):
        release_promote(version=second, actor=actor)
    assert drift_check() == []
    assert (ended(job).state, job.result) == ("succeeded", {"model": "relu", "version": 2})
    second.refresh_from_db()
    assert second.state == "archived"
    assert (data_folder / "archive" / "relu" / "2" / "model.onnx").is_file()
    assert not (data_folder / "models" / "relu" / "2").exists()
    assert drift_check() == []
    assert ended(version_restore(version=second, actor=actor)).state == "succeeded"
    second.refresh_from_db()
    assert second.state == "published"
    assert drift_check() == []


@pytest.mark.usefixtures("to_a_worker")
def test_cancelled_in_the_queue_the_version_is_what_it_was(second: Version, actor: Actor) -> None:
    job_cancel(job=version_archive(version=second, actor=actor), actor=actor)
    second.refresh_from_db()
    assert second.state == "published"
    assert drift_check() == []


@pytest.mark.usefixtures("to_a_worker")
def test_cancelled_on_the_way_the_version_is_what_it_was(
    second: Version, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = version_archive(version=second, actor=actor)
    copy = storage.copy_tree

    def cancelled(*args: Any) -> None:
        job_cancel(job=job, actor=actor)
        copy(*args)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "copy_tree", cancelled)
        assert ended(job).state == "cancelled"
    second.refresh_from_db()
    assert second.state == "published"
    assert drift_check() == []
    assert ended(version_archive(version=second, actor=actor)).state == "succeeded"


@pytest.mark.usefixtures("to_a_worker")
@pytest.mark.parametrize("calls", [1, 2], ids=["while it is copied", "while it is hashed"])
def test_cancelled_on_the_way_back_the_version_is_where_its_row_says(
    calls: int, second: Version, actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    assert ended(version_archive(version=second, actor=actor)).state == "succeeded"
    job = version_restore(version=second, actor=actor)
    plan, seen = version_moves.JobProgress.plan, []

    def cancelled(progress: JobProgress, size: int) -> None:
        seen.append(size)
        if len(seen) == calls:
            job_cancel(job=job, actor=actor)
        plan(progress, size)

    with monkeypatch.context() as patch:
        patch.setattr(version_moves.JobProgress, "plan", cancelled)
        assert ended(job).state == "cancelled"
    second.refresh_from_db()
    assert second.state == "archived"
    assert not (data_folder / "models" / "relu" / "2").exists()
    assert drift_check() == []
    assert ended(version_restore(version=second, actor=actor)).state == "succeeded"
    assert drift_check() == []


@pytest.mark.parametrize("moved", [False, True])
def test_a_version_is_not_left_moving_when_its_job_loses_the_database(
    moved: bool, second: Version, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any, **__: Any) -> None:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(version_states, "archived", locked)
        patch.setattr(version_states, "published", locked)
        if not moved:
            patch.setattr(publish, "archive_version", locked)
        job = version_archive(version=second, actor=actor)
    assert (job.state, second.state) == ("failed", "moving")
    Job.objects.update(state="running")
    assert moves_recover() == []
    Job.objects.update(state="failed")
    is_now = "archived" if moved else "published"
    assert moves_recover() == [f"Version 2 of relu was left moving; it is {is_now} now."]
    assert drift_check() == []
    assert moves_recover() == []


@pytest.mark.usefixtures("to_a_worker")
def test_killed_when_all_is_recorded_the_job_gets_its_outcome(
    second: Version, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*args: Any) -> None:
        raise Killed

    for begin, state in ((version_archive, "archived"), (version_restore, "published")):
        job = begin(version=second, actor=actor)
        with monkeypatch.context() as patch:
            patch.setattr(version_moves, "_result", kill)
            with pytest.raises(Killed):
                job_run(job_id=job.pk)
        Job.objects.filter(pk=job.pk).update(state="queued", attempt=1)
        assert (ended(job).state, job.result) == ("succeeded", {"model": "relu", "version": 2})
        second.refresh_from_db()
        assert second.state == state


@pytest.mark.usefixtures("to_a_worker")
def test_killed_after_the_move_the_job_goes_on(second: Version, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(*args: Any) -> None:
        raise Killed

    job = version_archive(version=second, actor=actor)
    with monkeypatch.context() as patch:
        patch.setattr(version_moves, "_record", kill)
        with pytest.raises(Killed):
            job_run(job_id=job.pk)
    Job.objects.filter(pk=job.pk).update(state="queued", attempt=1)
    assert ended(job).state == "succeeded"
    second.refresh_from_db()
    assert second.state == "archived"
    assert drift_check() == []


@pytest.mark.usefixtures("to_a_worker")
def test_a_version_that_would_be_live_when_it_is_back_goes_back_to_the_archive(
    second: Version, actor: Actor, data_folder: Path
) -> None:
    model = second.model
    ended(version_archive(version=second, actor=actor))
    job = version_restore(version=second, actor=actor)
    config_apply(
        model=model, document=Document.read(CONFIG + "version_policy { latest { num_versions: 1 } }\n"), actor=actor
    )
    model_load(model=model, actor=actor)
    assert (ended(job).state, job.result) == ("failed", {"status": 409})
    assert "would serve version 2 immediately" in job.error
    second.refresh_from_db()
    assert second.state == "archived"
    assert not (data_folder / "models" / "relu" / "2").exists()
    assert wanted_versions(model) == [1]
    assert drift_check() == []
