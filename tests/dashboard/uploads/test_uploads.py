"""Uploads arrive in chunks, go on after an interruption, and are refused early and clearly."""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.models import AuditEntry, Upload, UploadFile
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, StorageFull, TooLarge, WrongOffset
from dashboard.uploads.services import (
    upload_cancel,
    upload_complete,
    upload_create,
    upload_receive_chunk,
    uploads_expire,
)
from repository.core.errors import NoSpace
from repository.files import storage

pytestmark = pytest.mark.django_db


def create(actor: Actor, size: int = 10, path: str = "model.onnx", **more: Any) -> Upload:
    return upload_create(actor=actor, model_name="relu", files=[{"path": path, "size": size, **more}])


def send(upload: Upload, actor: Actor, offset: int, chunk: bytes, **more: Any) -> int:
    return upload_receive_chunk(upload=upload, number=0, offset=offset, chunk=chunk, actor=actor, **more).received


def test_an_interrupted_upload_goes_on_where_it_was(actor: Actor, unqueued: list[int]) -> None:
    upload = create(actor)
    assert send(upload, actor, 0, b"01234") == 5
    with pytest.raises(WrongOffset) as error:
        send(upload, actor, 0, b"01234")
    assert error.value.expected == 5
    assert send(upload, actor, 5, b"56789") == 10
    assert (upload.folder / "files" / "0").read_bytes() == b"0123456789"
    upload_complete(upload=upload, actor=actor)
    assert upload.state == "received"


def test_what_a_broken_write_left_behind_is_written_over(actor: Actor) -> None:
    upload = create(actor)
    send(upload, actor, 0, b"0123")
    with (upload.folder / "files" / "0").open("ab") as file:
        file.write(b"half a chunk")
    send(upload, actor, 4, b"456789")
    assert (upload.folder / "files" / "0").read_bytes() == b"0123456789"


def test_an_upload_is_complete_only_with_all_its_bytes(actor: Actor) -> None:
    upload = create(actor)
    send(upload, actor, 0, b"0123")
    with pytest.raises(Conflict, match="4 of 10 bytes"):
        upload_complete(upload=upload, actor=actor)


def test_more_bytes_than_announced_are_refused(actor: Actor) -> None:
    upload = create(actor, size=3)
    with pytest.raises(Invalid, match="announced with 3 bytes"):
        send(upload, actor, 0, b"0123")


def test_a_damaged_chunk_is_refused_and_can_be_sent_again(actor: Actor) -> None:
    upload = create(actor)
    good = hashlib.sha256(b"0123456789").hexdigest()
    with pytest.raises(Invalid, match="SHA-256"):
        send(upload, actor, 0, b"0123456780", sha256=good)
    assert send(upload, actor, 0, b"0123456789", sha256=good) == 10


def test_a_chunk_over_the_limit_is_refused(actor: Actor, settings: Any) -> None:
    settings.UPLOAD_CHUNK_BYTES = 4
    with pytest.raises(TooLarge):
        send(create(actor), actor, 0, b"01234")


@pytest.mark.parametrize("path", ["../x.onnx", "/etc/passwd", "a/../../x", "a\\b", "", "a//b", "x\0y", "./x"])
def test_a_name_that_could_leave_its_folder_is_refused(actor: Actor, path: str) -> None:
    with pytest.raises(Invalid):
        create(actor, path=path)
    assert not Upload.objects.exists()


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "a\nb", "*", "x" * 201])
def test_a_model_name_that_could_leave_the_repository_is_refused(actor: Actor, name: str) -> None:
    with pytest.raises(Invalid):
        upload_create(actor=actor, model_name=name, files=[{"path": "model.onnx", "size": 1}])


def test_bytes_are_stored_under_our_names_not_the_clients(actor: Actor) -> None:
    upload = create(actor, path="deep/er/модель.onnx")
    send(upload, actor, 0, b"0123456789")
    stored = [path.relative_to(upload.folder).as_posix() for path in upload.folder.rglob("*") if path.is_file()]
    assert sorted(stored) == ["0.lock", "files/0"]


def test_two_files_of_one_name_are_refused(actor: Actor) -> None:
    for paths in (["a", "a"], ["a", "a/b"]):
        with pytest.raises(Invalid, match="same name"):
            upload_create(actor=actor, model_name="relu", files=[{"path": path, "size": 1} for path in paths])


@pytest.mark.parametrize("size", [-1, 1.5, "10", True, None])
def test_a_size_that_is_no_size_is_refused(actor: Actor, size: Any) -> None:
    with pytest.raises(Invalid, match="size"):
        create(actor, size=size)


def test_what_is_too_large_is_refused_before_a_byte_is_sent(actor: Actor, settings: Any) -> None:
    settings.MAX_UPLOAD_BYTES = 100
    with pytest.raises(TooLarge, match="at most 100 bytes"):
        create(actor, size=101)


def test_what_would_fill_the_disk_is_refused_counting_what_others_still_send(
    actor: Actor, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.DISK_RESERVE_BYTES = 100 << 20
    monkeypatch.setattr(storage, "disk_usage", lambda folder: (1 << 40, 0, 200 << 20))
    create(actor, size=60 << 20)
    with pytest.raises(
        StorageFull, match="100 MiB are free in addition to the 100 MiB that are kept for the database and logs"
    ):
        create(actor, size=60 << 20)


def test_a_chunk_that_would_use_up_the_reserve_waits_until_there_is_room(
    actor: Actor, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    upload = create(actor, size=10)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "disk_usage", lambda folder: (1 << 40, 0, 1 << 20))
        with pytest.raises(StorageFull, match="can be continued when there is room"):
            send(upload, actor, 0, b"0123456789")
    assert send(upload, actor, 0, b"0123456789") == 10


def test_by_default_the_reserve_is_one_gib_or_a_twentieth_of_a_small_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for total, kept in ((1 << 40, 1 << 30), (2000, 100)):
        monkeypatch.setattr(storage, "disk_usage", lambda folder, total=total: (total, 0, total))
        storage.ensure_space(tmp_path, total - kept)
        with pytest.raises(NoSpace):
            storage.ensure_space(tmp_path, total - kept + 1)


def test_a_disk_that_is_full_says_so_and_the_upload_goes_on_when_there_is_room(
    actor: Actor, settings: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.STAGING_DIR = small_disk
    settings.DISK_RESERVE_BYTES = 0
    monkeypatch.setattr(storage, "ensure_space", lambda *arguments: None)
    upload = create(actor, size=300_000)
    send(upload, actor, 0, b"a" * 100_000)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"b" * 100_000)
    with pytest.raises(StorageFull, match="disk is full"):
        send(upload, actor, 100_000, b"a" * 100_000)
    ballast.unlink()
    assert send(upload, actor, 100_000, b"c" * 100_000) == 200_000
    assert (upload.folder / "files" / "0").read_bytes() == b"a" * 100_000 + b"c" * 100_000


def test_formats_that_can_run_code_need_the_permission(person: Callable[..., Any]) -> None:
    uploader = Actor(user=person("upload_data"))
    create(uploader, path="model.onnx")
    for path in ("model.pt", "1/model.py", "model.PLAN"):
        with pytest.raises(Forbidden, match="run code"):
            create(uploader, path=path)


def test_nobody_goes_on_with_somebody_elses_upload(actor: Actor, person: Callable[..., Any]) -> None:
    upload = create(actor)
    other = Actor(user=person("upload_data"))
    for act in (
        lambda: send(upload, other, 0, b"0"),
        lambda: upload_complete(upload=upload, actor=other),
        lambda: upload_cancel(upload=upload, actor=other),
    ):
        with pytest.raises(Forbidden):
            act()
    root = Actor(user=person(name="root", is_superuser=True))
    upload_cancel(upload=upload, actor=root)


def test_a_cancelled_upload_leaves_no_bytes_and_takes_none(actor: Actor) -> None:
    upload = create(actor)
    send(upload, actor, 0, b"0123")
    upload_cancel(upload=upload, actor=actor)
    assert upload.state == "cancelled"
    assert not upload.folder.exists()
    assert AuditEntry.objects.get().action == "upload.cancel"
    with pytest.raises(Conflict):
        upload_cancel(upload=upload, actor=actor)
    with pytest.raises(Conflict):
        send(upload, actor, 4, b"4")


def test_uploads_that_nobody_continues_expire(actor: Actor) -> None:
    fresh, stale = create(actor), create(actor)
    Upload.objects.filter(pk=stale.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert uploads_expire() == 1
    fresh.refresh_from_db()
    stale.refresh_from_db()
    assert (fresh.state, stale.state) == ("receiving", "expired")
    assert "in time" in stale.error


def test_each_chunk_puts_the_expiry_off(actor: Actor) -> None:
    upload = create(actor)
    Upload.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    send(upload, actor, 0, b"01")
    assert uploads_expire() == 0


def test_folders_that_no_upload_needs_are_cleared_away(actor: Actor, data_folder: Path) -> None:
    import os
    import uuid

    upload = create(actor)
    orphan = data_folder / "staging" / str(uuid.uuid4())
    foreign = data_folder / "staging" / "not-ours"
    for folder in (orphan, foreign):
        folder.mkdir()
    for folder in (orphan, foreign, upload.folder):
        os.utime(folder, (0, 0))
    uploads_expire()
    assert not orphan.exists()
    assert foreign.exists()
    assert upload.folder.exists()


def test_a_chunk_costs_the_same_however_many_files_its_upload_has(actor: Actor, api: APIClient) -> None:
    def cost(count: int) -> tuple[int, int]:
        """Queries, and rows of files that were read, for one chunk of the last file."""
        files = [{"path": f"part{number}", "size": 4} for number in range(count)]
        upload = upload_create(actor=actor, model_name="many", files=files)
        read: list[int] = []

        def note(**_: Any) -> None:
            read.append(1)

        post_init.connect(note, sender=UploadFile)
        try:
            with CaptureQueriesContext(connection) as queries:
                address = f"/api/v1/uploads/{upload.pk}/files/{count - 1}"
                answer = api.put(f"{address}?offset=0", b"1234", content_type="application/octet-stream")
                assert api.head(address)["Upload-Offset"] == "4"
        finally:
            post_init.disconnect(note, sender=UploadFile)
        assert answer.json() == {"received": 4, "size": 4}
        return len(queries), len(read)

    assert cost(1) == cost(300)
    assert cost(300)[1] <= 6
