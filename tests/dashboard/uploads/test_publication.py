"""Publishing is all or nothing, numbers are never used twice, and nothing becomes live behind a person's back."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_delete, model_unload
from dashboard.configuration.drift import drift_check
from dashboard.configuration.services import config_apply
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel, jobs_requeue_lost
from dashboard.models import AuditEntry, Job, Model, Release, Upload, Version
from dashboard.releases.selectors import wanted_versions
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid
from dashboard.uploads import publication
from dashboard.uploads.publication import publications_recover, upload_publish
from dashboard.uploads.services import upload_cancel, uploads_expire
from repository.config.document import Document
from repository.core.errors import NoSpace
from repository.files import signatures
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes, version_from
from tests.support.signing_keys import key_pair

pytestmark = pytest.mark.django_db
Publish = Callable[..., Version]


def begin(upload: Upload, actor: Actor, **more: Any) -> Job:
    return upload_publish(upload=upload, actor=actor, document=Document.read(CONFIG), **{"load": False, **more})


def publish(upload: Upload, actor: Actor, **more: Any) -> Version:
    return version_from(begin(upload, actor, **more))


def test_a_published_version_lies_whole_in_the_repository(published: Publish, data_folder: Path) -> None:
    version = published(load=True, note="first")
    folder = data_folder / "models" / "relu"
    assert (folder / "1" / "model.onnx").read_bytes() == relu_bytes()
    assert (folder / "config.pbtxt").read_text() == Document.read(CONFIG).stamped(1)
    assert (version.number, version.format, version.note, version.created_by_name) == (1, "onnx", "first", "olga")
    assert version.size_bytes == len(relu_bytes())
    assert len(version.sha256) == 64
    assert version.signature["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert not version.upload.folder.exists()


def test_a_version_is_signed_where_a_key_is_given(
    published: Publish, settings: Any, data_folder: Path, tmp_path: Path
) -> None:
    private, public = key_pair(tmp_path / "keys")
    settings.SIGNING_KEY = private
    version = published(load=True)
    folder = data_folder / "models" / "relu" / "1"
    signatures.verify(folder, [public])
    assert signatures.SIGNATURE_FILE in {path.name for path in folder.iterdir()}
    assert version.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert drift_check() == [], "the signature belongs to what was published"


def test_the_rows_of_a_publication_come_together(published: Publish) -> None:
    version = published(load=True)
    model = version.model
    assert (model.desired_state, model.generation, wanted_versions(model)) == ("loaded", 1, [1])
    assert Document.read(Release.objects.get().text).text == CONFIG
    entry = AuditEntry.objects.get(action="version.publish")
    assert (entry.actor_name, entry.model_name, entry.after["versions"]) == ("olga", "relu", [1])
    assert version.upload.state == UploadState.PUBLISHED
    assert drift_check() == []


def test_numbers_go_up_and_are_never_used_twice(published: Publish, actor: Actor) -> None:
    assert [published().number, published().number] == [1, 2]
    model_delete(model=Model.objects.get(), actor=actor, confirm_name="relu")
    assert published().number == 3


def test_a_new_version_becomes_live_only_when_somebody_says_so(published: Publish) -> None:
    model = published(load=True).model
    published(load=False)
    assert wanted_versions(model) == [1]
    text = model.releases.first().text
    assert "versions: [1]" in text
    assert "widest ReLU" in text
    published(load=False, make_live=True, config_text=text)
    assert wanted_versions(model) == [3]


def test_with_the_latest_policy_loading_serves_the_newest(published: Publish) -> None:
    model = published(load=True).model
    published(load=True)
    assert wanted_versions(model) == [2]
    assert [Document.read(release.text).text for release in model.releases.all()] == [CONFIG, CONFIG]


def test_publishing_an_unloaded_model_loads_nothing(published: Publish) -> None:
    model = published().model
    assert (model.desired_state, model.generation, wanted_versions(model)) == ("unloaded", 1, [])


def test_a_configuration_that_a_server_would_refuse_is_refused_here(published: Publish) -> None:
    with pytest.raises(Invalid, match="max_batch_size") as error:
        published(config_text="max_batch_size: -1")
    assert error.value.problems[0].line == 1
    with pytest.raises(Invalid, match="unknown field 'nonsense'"):
        published(config_text="nonsense: 3")
    assert not Model.objects.exists()
    assert not Version.objects.exists()


def test_a_config_that_names_another_model_is_refused(published: Publish) -> None:
    with pytest.raises(Invalid, match="expected 'relu'"):
        published(config_text='name: "other"\n' + CONFIG)


def test_code_is_published_only_by_those_who_may(received: Callable[..., Upload], person: Callable[..., Any]) -> None:
    uploader = Actor(user=person("upload_data", "operate"))
    upload = as_inspected(received({"model.onnx": relu_bytes()}, by=uploader), executes_code=True, format="python")
    with pytest.raises(Forbidden, match="run code"):
        publish(upload, uploader)


def test_loading_needs_the_permission_to_operate(received: Callable[..., Upload], person: Callable[..., Any]) -> None:
    uploader = Actor(user=person("upload_data"))
    upload = as_inspected(received({"model.onnx": relu_bytes()}, by=uploader))
    with pytest.raises(Forbidden, match="load"):
        publish(upload, uploader, load=True)
    assert publish(upload, uploader).number == 1


def test_a_file_with_an_error_is_not_published(received: Callable[..., Upload], actor: Actor) -> None:
    problem = {"severity": "error", "message": "the file is truncated"}
    upload = as_inspected(received({"model.onnx": relu_bytes()}), problems=[problem])
    with pytest.raises(Conflict, match="truncated"):
        publish(upload, actor)


def test_an_upload_is_published_once(received: Callable[..., Upload], actor: Actor) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    publish(upload, actor)
    with pytest.raises(Conflict, match="published"):
        publish(upload, actor)


def test_a_full_disk_leaves_everything_as_it_was(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))

    def full(*args: Any, **more: Any) -> None:
        raise NoSpace(100 << 20, 1 << 20)

    with monkeypatch.context() as patch:
        patch.setattr(publication.publish, "place_version", full)
        job = begin(upload, actor)
    assert (job.state, job.result) == ("failed", {"status": 507})
    assert "100 MiB" in job.error
    assert (upload.state, upload.error) == (UploadState.INSPECTED, job.error)
    assert not Model.objects.exists()
    assert list((data_folder / "models").iterdir()) == []
    assert publish(upload, actor).number == 1


def test_a_configuration_that_cannot_be_written_takes_the_version_back(
    published: Publish,
    received: Callable[..., Upload],
    actor: Actor,
    monkeypatch: pytest.MonkeyPatch,
    data_folder: Path,
) -> None:
    published()
    upload = as_inspected(received({"model.onnx": relu_bytes()}))

    def full(*args: Any, **more: Any) -> None:
        raise NoSpace(100 << 20, 1 << 20)

    with monkeypatch.context() as patch:
        patch.setattr(publication.storage, "write_atomic", full)
        assert begin(upload, actor).state == "failed"
    assert not (data_folder / "models" / "relu" / "2").exists()
    assert drift_check() == []
    assert publish(upload, actor).number == 3


class Killed(BaseException):
    """Stands for a process that ends at this point."""


def kill(*args: Any, **more: Any) -> None:
    raise Killed


def lose_worker() -> None:
    """Its heart has not beaten for long: the job is queued again, as `watch` does it."""
    Job.objects.filter(state="running").update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert jobs_requeue_lost() == 1


def test_killed_before_the_rename_nothing_is_published_and_the_job_goes_on(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    with monkeypatch.context() as patch:
        patch.setattr(publication.publish, "place_version", kill)
        with pytest.raises(Killed):
            begin(upload, actor)
    assert Upload.objects.get().state == UploadState.PUBLISHING
    assert list((data_folder / "models").iterdir()) == []
    assert publications_recover() == []
    lose_worker()
    job = Job.objects.get(kind="publish")
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert version_from(job).number == 1


def test_killed_after_the_rename_the_job_finishes_it(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    with monkeypatch.context() as patch:
        patch.setattr(publication, "_record", kill)
        with pytest.raises(Killed):
            begin(upload, actor, load=True, note="kept")
    assert not Version.objects.exists()
    assert drift_check() == []
    lose_worker()
    job_run(job_id=Job.objects.get(kind="publish").pk)
    version = Version.objects.get()
    assert (version.note, version.created_by_name, version.model.desired_state) == ("kept", "olga", "loaded")
    assert len(version.sha256) == 64
    assert publications_recover() == []
    assert drift_check() == []


def test_what_is_in_place_is_finished_where_its_job_was_given_up(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    with monkeypatch.context() as patch:
        patch.setattr(publication, "_record", kill)
        with pytest.raises(Killed):
            begin(upload, actor)
    lose_worker()
    job_cancel(job=Job.objects.get(kind="publish"), actor=actor)
    assert publications_recover() == ["Finished the publication of version 1 of relu."]
    assert Version.objects.get().number == 1


def test_killed_when_all_is_recorded_the_job_gets_its_outcome(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    with monkeypatch.context() as patch:
        patch.setattr(publication.storage, "remove_tree", kill)
        with pytest.raises(Killed):
            begin(upload, actor)
    assert Upload.objects.get().state == UploadState.PUBLISHED
    lose_worker()
    job = Job.objects.get(kind="publish")
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", {"model": "relu", "version": 1})
    assert (Version.objects.count(), upload.folder.exists()) == (1, False)


@pytest.mark.parametrize("already", [0, 1], ids=["a new model", "a new version"])
def test_what_was_taken_back_meanwhile_is_not_placed(
    already: int, published: Publish, received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker was taken for lost and its job ended, and just then it goes on."""
    for _ in range(already):
        published()
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    put = publication._put

    def abandoned_before(*given: Any) -> Any:
        publication.publication_abandoned(Job.objects.filter(kind="publish").latest("id"))
        return put(*given)

    with monkeypatch.context() as patch:
        patch.setattr(publication, "_put", abandoned_before)
        job = begin(upload, actor)
    assert (job.state, job.result) == ("failed", {"status": 409})
    assert (upload.state, upload.error) == (UploadState.INSPECTED, "publishing was cancelled")
    assert (Version.objects.count(), drift_check()) == (already, [])
    assert publish(upload, actor).number == 1 + 2 * already


def test_what_was_cancelled_leaves_nothing_and_can_be_published_again(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    staged = publication.publish.stage_version

    def cancelled(*args: Any, **more: Any) -> Any:
        job_cancel(job=Job.objects.get(kind="publish"), actor=actor)
        return staged(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(publication.publish, "stage_version", cancelled)
        job = begin(upload, actor, note="typed")
    assert (job.state, upload.state, upload.error) == ("cancelled", "inspected", "publishing was cancelled")
    assert upload.publication["note"] == "typed"
    assert list((data_folder / "models").iterdir()) == []
    assert list((data_folder / "staging").glob(".publish-*")) == []
    assert not Model.objects.exists()
    assert publish(upload, actor).number == 1


@pytest.fixture
def to_a_worker(settings: Any) -> None:
    """Treat every version as large."""
    settings.AT_ONCE_BYTES = 0


@pytest.mark.usefixtures("to_a_worker")
def test_a_large_version_is_published_by_a_worker(received: Callable[..., Upload], actor: Actor) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    job = begin(upload, actor)
    assert (job.state, upload.state, upload.job) == ("queued", "publishing", job)
    assert job.title == "Publish version 1 of relu"
    with pytest.raises(Conflict, match="is publishing"):
        begin(upload, actor)
    with pytest.raises(Conflict, match=f"cancel job {job.pk} first"):
        upload_cancel(upload=upload, actor=actor)
    with pytest.raises(Conflict, match="a job is moving files"):
        model_delete(model=Model.objects.get(), actor=actor, confirm_name="relu")
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert version_from(job).number == 1
    assert job.result == {"model": "relu", "version": 1}
    assert job.log == "Hashing\nFlushing to the disk\nPlacing it in the repository\n"


@pytest.mark.usefixtures("to_a_worker")
def test_a_publication_is_cancelled_in_the_queue(received: Callable[..., Upload], actor: Actor) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    job_cancel(job=begin(upload, actor), actor=actor)
    upload.refresh_from_db()
    assert (upload.state, upload.error) == (UploadState.INSPECTED, "publishing was cancelled")
    assert not Model.objects.exists()


@pytest.mark.usefixtures("to_a_worker")
def test_a_configuration_that_changed_meanwhile_is_not_written_over(
    published: Publish, received: Callable[..., Upload], actor: Actor, settings: Any
) -> None:
    settings.AT_ONCE_BYTES = 1 << 20
    model = published(load=True).model
    settings.AT_ONCE_BYTES = 0
    job = begin(as_inspected(received({"model.onnx": relu_bytes()})), actor)
    config_apply(model=model, document=Document.read(CONFIG.replace("8", "4")), actor=actor)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.result) == ("failed", {"status": 409})
    assert "was changed while version 2 was being published" in job.error
    assert model.releases.count() == 2
    assert wanted_versions(model) == [1]
    assert drift_check() == []


@pytest.mark.usefixtures("to_a_worker")
def test_what_is_live_is_decided_when_the_files_are_ready(
    published: Publish, received: Callable[..., Upload], actor: Actor, settings: Any
) -> None:
    settings.AT_ONCE_BYTES = 1 << 20
    model = published(load=True).model
    settings.AT_ONCE_BYTES = 0
    first, second = (
        begin(as_inspected(received({"model.onnx": relu_bytes()})), actor, load=load) for load in (True, False)
    )
    for job in (first, second):
        job_run(job_id=job.pk)
        job.refresh_from_db()
        version_from(job)
    assert wanted_versions(model) == [2]


def test_a_publication_that_is_under_way_is_left_alone(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    place, seen = publication._place, []

    def watched(*given: Any) -> Any:
        seen.append(publications_recover())
        uploads_expire()
        return place(*given)

    monkeypatch.setattr(publication, "_place", watched)
    assert publish(upload, actor).number == 1
    assert seen == [[]]


def test_a_config_changed_on_disk_is_not_written_over(published: Publish, data_folder: Path) -> None:
    published(load=True)
    path = data_folder / "models" / "relu" / "config.pbtxt"
    path.write_text(CONFIG + "# by hand\n")
    with pytest.raises(Conflict, match="changed on disk"):
        published()
    assert path.read_text().endswith("# by hand\n")


def test_a_loaded_model_is_not_deleted(published: Publish, actor: Actor, data_folder: Path) -> None:
    model = published(load=True).model
    with pytest.raises(Invalid, match="type the model's name"):
        model_delete(model=model, actor=actor, confirm_name="rely")
    with pytest.raises(Conflict, match="loaded"):
        model_delete(model=model, actor=actor, confirm_name="relu")
    model_unload(model=model, actor=actor)
    model_delete(model=model, actor=actor, confirm_name="relu")
    assert not (data_folder / "models" / "relu").exists()
    assert AuditEntry.objects.first().summary == "Deleted relu with 1 version"
