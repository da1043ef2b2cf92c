"""The repository in a bucket: each change is there as a whole before it is done, and the bucket alone restores everything."""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from django.conf import settings
from django.db import connections
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_delete, model_describe, model_unload
from dashboard.configuration.drift import drift_adopt, drift_check, model_adopt
from dashboard.configuration.services import config_apply
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import jobs_requeue_lost
from dashboard.models import Installation, Job, Model, Upload, Version
from dashboard.releases import bucket as buckets
from dashboard.releases.bucket import bucket_collect, bucket_reconcile, managed_bucket
from dashboard.releases.restoration import bucket_accept, bucket_compare
from dashboard.releases.storage import managed_repository
from dashboard.shared.exceptions import Conflict, Unavailable
from dashboard.uploads.publication import publications_recover, upload_publish
from dashboard.versions.moves import version_archive, version_restore
from repository.config.document import Document
from repository.core.errors import Conflict as HeldByOther
from repository.core.errors import Unreachable
from repository.files.progress import Progress
from repository.files.storage import FileEntry, hash_file, hash_tree
from repository.remote import managed_bucket as managed_bucket_module
from repository.remote.managed_bucket import ManagedBucket, Pointer
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes
from tests.support.faulty_store import FaultyStore
from tests.support.object_store import BUCKET, ObjectStore, Stores, both_stores
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

Publish = Callable[..., Version]


class Killed(BaseException):
    """A kill: nothing that handles errors runs."""


both = both_stores("running_store")


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with Stores() as stores:
        yield stores


@pytest.fixture
def running_store(stores: Stores, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    store = stores.empty(getattr(request, "param", ObjectStore))
    for name, value in store.credentials.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no store that hangs."""
    monkeypatch.setattr(buckets, "WRITE_S", PATIENCE_S)
    monkeypatch.setattr(managed_bucket_module, "ANSWER_S", PATIENCE_S)


@pytest.fixture
def bucket(running_store: ObjectStore, settings: Any, patient: None, transactional_db: None) -> ManagedBucket:
    settings.REPOSITORY_BUCKET = f"s3://127.0.0.1:{running_store.port}/{BUCKET}/prefix"
    assert bucket_compare() == []
    return the_bucket()


def the_bucket() -> ManagedBucket:
    found = managed_bucket()
    assert found is not None
    return found


def pointer(name: str = "relu") -> Pointer:
    found = the_bucket().pointer(name)
    assert found is not None
    return found


def in_bucket(tmp_path: Path, name: str = "relu") -> dict[str, str]:
    """The model's files in the bucket: path -> SHA-256 of what is really there."""
    folder = tmp_path / "read"
    shutil.rmtree(folder, ignore_errors=True)
    for path, entry in pointer(name).files.items():
        the_bucket().fetch(entry, folder / path)
    return {path: entry.sha256 for path, entry in hash_tree(folder).files.items()}


def in_folder(name: str = "relu") -> dict[str, str]:
    return {path: entry.sha256 for path, entry in hash_tree(managed_repository().model_dir(name)).files.items()}


def objects() -> set[str]:
    return set(the_bucket()._list("objects"))


def all_gone() -> None:
    """An empty database and an empty folder."""
    Model.objects.all().delete()
    Upload.objects.all().delete()
    Job.objects.all().delete()
    for folder in (settings.MODEL_REPOSITORY, settings.ARCHIVE_DIR, settings.STAGING_DIR):
        shutil.rmtree(folder)
        folder.mkdir()


@both
def test_every_change_reaches_the_bucket_and_the_bucket_alone_restores_it(
    bucket: ManagedBucket, published: Publish, actor: Actor, tmp_path: Path
) -> None:
    first = published(load=True, make_live=True)
    published(make_live=True)
    assert in_bucket(tmp_path) == in_folder()
    assert len(objects()) == 3, "two configurations, and one file of both versions"
    config_apply(model=first.model, actor=actor, document=smaller(), base_release=None)
    assert in_bucket(tmp_path) == in_folder()
    version_archive(version=first, actor=actor)
    assert in_bucket(tmp_path) == in_folder()
    assert list(pointer().archived) == [1]
    model_describe(model=Model.objects.get(), actor=actor, description="the widest")
    make_marks_old()
    assert bucket_reconcile() == ["relu"]

    before, files = Model.objects.get(), in_folder()
    rows = list(before.versions.values("number", "state", "sha256", "signature", "details", "config"))
    release = before.releases.values("number", "text", "versions").first()
    all_gone()
    assert bucket_compare() == ["relu"]
    after = Model.objects.get()
    assert in_folder() == files
    assert list(after.versions.values("number", "state", "sha256", "signature", "details", "config")) == rows
    assert after.releases.values("number", "text", "versions").get() == release
    assert (after.description, after.desired_state, after.last_number) == ("the widest", "loaded", 2)
    assert drift_check() == []
    version_restore(version=Version.objects.get(number=1), actor=actor)
    assert in_bucket(tmp_path) == in_folder()
    assert not pointer().archived
    assert published().number == 3
    assert bucket_compare() == [], "a second comparison finds nothing to do"


@both
def test_a_server_serves_what_is_published_in_the_bucket(
    bucket: ManagedBucket, published: Publish, actor: Actor, tmp_path: Path
) -> None:
    first = published(load=True, make_live=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    flags = (
        "--model-control-mode=poll",
        "--repository-poll-secs=0.5",
        f"--repository-cache-folder={tmp_path / 'cache'}",
    )
    with (
        ServerProcess(empty, *flags, f"--model-repository={settings.REPOSITORY_BUCKET}") as server,
        httpclient.InferenceServerClient(server.http) as client,
    ):

        def serves(*numbers: int) -> bool:
            rows = [row for row in client.get_model_repository_index() if row["name"] == "relu"]
            return {int(row["version"]) for row in rows if row.get("state") == "READY"} == set(numbers)

        wait_until(lambda: serves(1), what="the first version")
        published(load=True, make_live=True)
        wait_until(lambda: serves(2), what="the second version")
        x = httpclient.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(np.array([[-1, 0, 1, 2]], np.float32))
        assert client.infer("relu", [x]).as_numpy("y").tolist() == [[0, 0, 1, 2]]
        version_archive(version=first, actor=actor)
        model_unload(model=first.model, actor=actor)
        model_delete(model=Model.objects.get(), actor=actor, confirm_name="relu")
        published("other")  # a list without any model unloads nothing
        wait_until(lambda: serves(), what="the end of the deleted model")


def on_disk(name: str) -> str:
    return (managed_repository().model_dir(name) / "config.pbtxt").read_text()


def make_marks_old() -> None:
    for marks in buckets._marks().values():
        for mark in marks:
            os.utime(mark, (0, 0))


def test_a_model_is_deleted_and_adopted_in_the_bucket_too(
    bucket: ManagedBucket, published: Publish, actor: Actor, tmp_path: Path
) -> None:
    published()
    folder = managed_repository().model_dir("relu")
    shutil.copytree(folder / "1", folder / "7")
    (folder / "labels.txt").write_text("one")
    drift_adopt(model=Model.objects.get(), actor=actor)
    assert in_bucket(tmp_path) == in_folder()
    shutil.copytree(folder, folder.parent / "other")
    model_adopt(name="other", actor=actor)
    assert in_bucket(tmp_path, "other") == in_folder("other")
    model_delete(model=Model.objects.get(name="relu"), actor=actor, confirm_name="relu")
    assert the_bucket().models() == ["other"]
    assert not buckets._marks()


def dying(monkeypatch: pytest.MonkeyPatch, when: str, error: BaseException) -> pytest.MonkeyPatch:
    """Let a process die, or fail, before or after it writes a pointer."""
    write = ManagedBucket.point

    def point(self: ManagedBucket, *given: Any) -> None:
        if when == "after":
            write(self, *given)
        raise error

    monkeypatch.setattr(ManagedBucket, "point", point)
    return monkeypatch


CHANGES = ("new model", "version", "configuration", "archive", "restore")


def ready_for(what: str, published: Publish, actor: Actor) -> None:
    """A model with two versions, with the name of the change that follows."""
    if what != "new model":
        version = published(what, make_live=True)
        published(what, make_live=True)
    if what == "restore":
        version_archive(version=version, actor=actor)


def change(what: str, received: Callable[..., Upload], actor: Actor) -> Job | None:
    """Do it, and return its job."""
    if what == "configuration":
        config_apply(model=Model.objects.get(name=what), actor=actor, document=smaller(what), base_release=None)
        return None
    if what in ("archive", "restore"):
        version = Version.objects.get(model__name=what, number=1)
        return (version_archive if what == "archive" else version_restore)(version=version, actor=actor)
    upload = as_inspected(received({"model.onnx": relu_bytes()}, what))
    return upload_publish(upload=upload, actor=actor, document=Document.read(CONFIG), make_live=True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_the_pointer_the_bucket_has_the_old_or_the_new_and_then_what_the_rows_say(
    when: str, bucket: ManagedBucket, published: Publish, received: Callable[..., Upload], actor: Actor, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for what in CHANGES:
        ready_for(what, published, actor)
    old = {what: in_bucket(tmp_path, what) for what in CHANGES[1:]}
    dying(monkeypatch, when, Killed())
    for what in CHANGES:
        with pytest.raises(Killed):
            change(what, received, actor)
        if when == "after":
            assert in_bucket(tmp_path, what) != old.get(what)
        elif what in old:
            assert in_bucket(tmp_path, what) == old[what]
        else:
            assert the_bucket().pointer(what) is None
    monkeypatch.undo()
    end_of_the_killed()
    assert not buckets._marks()
    for what in CHANGES:
        assert in_bucket(tmp_path, what) == in_folder(what)
        assert the_bucket().pointer(what)
    numbers = {what: set(managed_repository().versions(what)) for what in CHANGES}
    assert numbers["new model"] == {1}
    assert numbers["version"] == {1, 2, 3}
    assert numbers["archive"] == {2}
    assert numbers["restore"] == {1, 2}
    for version in Version.objects.select_related("model"):
        there = version.number in numbers[version.model.name]
        assert version.state == ("published" if there else "archived")


def smaller(name: str = "relu") -> Document:
    return Document.read(on_disk(name).replace("max_batch_size: 8", "max_batch_size: 4"))


def end_of_the_killed() -> None:
    """What `watch` and the worker do after a process was killed."""
    Job.objects.filter(state="running").update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    jobs_requeue_lost()
    for job in Job.objects.filter(state="queued"):
        job_run(job_id=job.pk)
    publications_recover()
    drift_check()
    make_marks_old()
    bucket_reconcile()


def test_what_the_bucket_does_not_take_is_not_made(
    bucket: ManagedBucket,
    published: Publish,
    received: Callable[..., Upload],
    actor: Actor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for what in CHANGES:
        ready_for(what, published, actor)
    files = {what: in_folder(what) for what in CHANGES[1:]}
    rows = set(Version.objects.values_list("model__name", "number", "state"))
    dying(monkeypatch, "before", Unreachable("the s3 repository cannot be reached"))
    with pytest.raises(Unavailable, match="cannot be reached"):
        change("configuration", received, actor)
    for what in CHANGES:
        if what != "configuration":
            job = change(what, received, actor)
            assert job is not None
            assert (job.state, job.result["status"], job.error) == (
                "failed",
                503,
                "the s3 repository cannot be reached",
            )
    assert drift_check() == []
    assert {what: in_folder(what) for what in managed_repository().models()} == files
    assert set(Version.objects.values_list("model__name", "number", "state")) == rows
    assert not Model.objects.filter(name="new model").exists()


def test_a_store_that_is_down_is_said_and_comes_back(
    bucket: ManagedBucket, published: Publish, received: Callable[..., Upload], actor: Actor, running_store: ObjectStore
) -> None:
    version = published(make_live=True)
    running_store.stop()
    try:
        with pytest.raises(Unavailable, match=r"the s3 repository \(SLIPWAY_REPOSITORY\) cannot be reached"):
            config_apply(model=version.model, actor=actor, document=smaller(), base_release=None)
        upload = as_inspected(received({"model.onnx": relu_bytes(8)}))
        job = upload_publish(upload=upload, actor=actor, load=False)
        assert (job.state, job.result["status"]) == ("failed", 503)
        model_unload(model=version.model, actor=actor)  # this does not wait for the bucket
        with pytest.raises(Unavailable):
            bucket_compare()
    finally:
        running_store.start()
    # This store forgets everything when it is stopped, so everything is sent again.
    assert bucket_compare() == []
    assert upload_publish(upload=Upload.objects.get(pk=upload.pk), actor=actor, load=False).state == "succeeded"
    make_marks_old()
    assert bucket_reconcile() == ["relu"]
    record: Any = pointer().document["record"]
    assert record["model"]["desired_state"] == "unloaded"


@both
def test_garbage_is_collected_and_nothing_else(
    bucket: ManagedBucket, published: Publish, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = published(make_live=True)
    published(make_live=True)
    version_archive(version=version, actor=actor)
    with monkeypatch.context() as patch:
        dying(patch, "before", Killed())
        with pytest.raises(Killed):
            config_apply(model=version.model, actor=actor, document=smaller(), base_release=None)
    there = objects()
    assert bucket_collect() == 0, "what is younger than a day may belong to a publication under way"
    assert objects() == there
    monkeypatch.setattr(ManagedBucket.collect, "__kwdefaults__", {"older_than_s": -60.0})
    named = pointer().digests
    assert bucket_collect() == len(there - named) > 0
    assert objects() == named
    the_bucket().remove("relu")
    with pytest.raises(Unavailable, match="lists no pointer of 'relu'"):
        bucket_collect()
    assert objects() == named, "an incomplete list removes nothing"


def test_a_bucket_of_another_installation_is_refused_until_it_is_accepted(
    bucket: ManagedBucket, published: Publish, actor: Actor, tmp_path: Path
) -> None:
    version = published(make_live=True)
    before = in_bucket(tmp_path)
    Installation.objects.update(identity="another")
    with pytest.raises(Conflict, match="belongs to another database"):
        bucket_compare()
    with pytest.raises(Conflict, match=r"run manage\.py accept bucket"):
        config_apply(model=version.model, actor=actor, document=smaller(), base_release=None)
    assert in_bucket(tmp_path) == before
    bucket_accept()
    config_apply(model=version.model, actor=actor, document=smaller(), base_release=None)
    assert in_bucket(tmp_path) == in_folder() != before


def test_a_late_writer_overwrites_nothing(bucket: ManagedBucket, published: Publish, actor: Actor) -> None:
    version = published(make_live=True)
    seen = pointer()
    config_apply(model=version.model, actor=actor, document=smaller(), base_release=None)
    now = pointer()
    for before in (seen, None):
        with pytest.raises(HeldByOther, match="changed by another process"):
            the_bucket().point("relu", seen.document, before)
    assert pointer() == now


@both
def test_a_damaged_object_restores_nothing(
    bucket: ManagedBucket, published: Publish, running_store: ObjectStore
) -> None:
    published()
    entry = pointer().files["1/model.onnx"]
    running_store.put(f"prefix/objects/{entry.sha256}", bytes(entry.size))
    all_gone()
    with pytest.raises(Unavailable, match="damaged"):
        bucket_compare()
    assert (Model.objects.count(), managed_repository().models()) == (0, [])
    running_store.put(f"prefix/objects/{entry.sha256}", relu_bytes())
    assert bucket_compare() == ["relu"]


@both
def test_a_large_file_is_sent_in_parts_and_a_cancelled_one_is_no_object(bucket: ManagedBucket, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(random.Random(1).randbytes(40 << 20))
    entry = hash_file(path)

    class Cancelled(Progress):
        def advance(self, size: int) -> None:
            if size:
                raise Killed

    with pytest.raises(Killed):
        the_bucket().send({entry: path}, Cancelled())
    assert objects() == set()
    the_bucket().send({entry: path})
    the_bucket().fetch(entry, tmp_path / "back")
    path.write_bytes(b"by hand")
    with pytest.raises(HeldByOther, match="changed or removed by hand"):
        the_bucket().send({FileEntry(3, "0" * 64): path})


def test_a_store_that_hangs_holds_up_no_other_model(
    bucket: ManagedBucket, published: Publish, actor: Actor, running_store: ObjectStore, settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """SQLite has one lock for all who write."""
    model = published(make_live=True).model
    other = published("other").model
    monkeypatch.setattr(buckets, "WRITE_S", 3.0)

    def change() -> str:
        with pytest.raises(Unavailable) as raised:
            config_apply(model=model, actor=actor, document=smaller(), base_release=None)
        connections.close_all()
        return raised.value.message

    with FaultyStore(running_store.endpoint) as proxy, ThreadPoolExecutor(1) as pool:
        settings.REPOSITORY_BUCKET = f"s3://127.0.0.1:{proxy.port}/{BUCKET}/prefix"
        assert bucket_compare() == []
        before, asked = pointer(), proxy.requests
        proxy.fault = "hanging"
        waiting = pool.submit(change)
        wait_until(lambda: proxy.requests > asked, what="a request")
        model_describe(model=other, actor=actor, description="described meanwhile")
        assert not waiting.done(), "nobody holds a lock while the store is asked whether it answers"
        assert "SLIPWAY_REPOSITORY" in waiting.result(PATIENCE_S)

        monkeypatch.setattr(buckets, "WRITE_S", 6.0)
        proxy.fault, proxy.held_back = "", "/models/relu.json"
        waiting = pool.submit(change)
        assert proxy.holds.wait(PATIENCE_S)
        begun = time.monotonic()
        assert "SLIPWAY_REPOSITORY" in waiting.result(PATIENCE_S)
        assert time.monotonic() - begun < 12, "the lock of the model is held only for the time of a writing"
        assert Model.objects.get(name="relu").releases.count() == 1
        monkeypatch.setattr(buckets, "WRITE_S", PATIENCE_S)
        make_marks_old()
        assert bucket_reconcile() == ["other", "relu"]
        proxy.let_through.set()
        wait_until(lambda: proxy.late_status > 0, what="the late writing")
        assert proxy.late_status == 412
        assert pointer().document["record"] == before.document["record"]


def test_without_conditional_writes_a_writer_waits_for_the_lease_of_another(
    bucket: ManagedBucket, published: Publish, actor: Actor, running_store: ObjectStore, settings: Any,
    caplog: pytest.LogCaptureFixture, tmp_path: Path,
) -> None:  # fmt: skip
    assert bucket.conditional
    model = published(make_live=True).model
    with FaultyStore(running_store.endpoint) as proxy:
        proxy.no_conditions = True
        settings.REPOSITORY_BUCKET = f"s3://127.0.0.1:{proxy.port}/{BUCKET}/prefix"
        with caplog.at_level("INFO"):
            assert not the_bucket().conditional
        assert "by a lease, because the store has no conditional writes" in caplog.text
        other_writer = buckets._mark("relu", ".writing-another-process-")
        before = pointer()
        for _ in range(2):
            with pytest.raises(Conflict, match="another process may still be changing 'relu' in the bucket"):
                config_apply(model=model, actor=actor, document=smaller(), base_release=None)
        assert pointer().document == before.document
        published("unlike")
        os.utime(other_writer, (0, 0))
        config_apply(model=model, actor=actor, document=smaller(), base_release=None)
        assert in_bucket(tmp_path) == in_folder()
        make_marks_old()
        assert bucket_reconcile() == ["relu"]
        assert not buckets._marks()
