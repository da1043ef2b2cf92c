"""Uploads whose files a job fetches: from the request to the inspection, broken off, changed, cancelled, and shown truly."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.models import AuditEntry, Job, Upload
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, NotFound, TooLarge
from dashboard.uploads import fetching
from dashboard.uploads.fetching import upload_fetch, upload_fetch_again
from dashboard.uploads.selectors import upload_get
from dashboard.uploads.services import upload_cancel, upload_receive_chunk
from dashboard.uploads.sources import base
from tests.dashboard.conftest import relu_bytes
from tests.dashboard.uploads.file_server import FileServer, WebFile, file_server

pytestmark = pytest.mark.django_db
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in {"relu": relu_bytes()}.items()}


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch, unqueued: list[int]) -> None:
    monkeypatch.setattr(fetching, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(base, "PIECE_BYTES", 1000)


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    """An allowed folder."""
    path = tmp_path / "allowed"
    path.mkdir()
    settings.SOURCE_FOLDERS = [path]
    return path


@pytest.fixture
def web(settings: Any) -> Iterator[FileServer]:
    """A web server of which /models is allowed."""
    with file_server() as server:
        settings.SOURCE_URLS = [f"{server.url}/models"]
        yield server


@pytest.fixture
def fetch(actor: Actor) -> Callable[..., Upload]:
    """fetch("folder", address=...): an upload that was made from a source, and whose job has run."""

    def begin(kind: str, name: str = "relu", by: Actor = actor, **fields: str) -> Upload:
        upload = upload_fetch(actor=by, model_name=name, source={"kind": kind, **fields})
        return run(upload)

    return begin


def run(upload: Upload) -> Upload:
    job_run(job_id=upload_get(upload.pk).job_id or 0)
    return upload_get(upload.pk)


def bytes_of(upload: Upload, number: int = 0) -> bytes:
    return (upload.folder / "files" / str(number)).read_bytes()


# -- to a version ------------------------------------------------------------------------------------------------------
def test_a_file_of_an_allowed_folder_is_fetched_and_inspected(folder: Path, fetch: Callable[..., Upload]) -> None:
    (folder / "model.onnx").write_bytes(relu_bytes())
    upload = fetch("folder", address=str(folder / "model.onnx"))
    assert (upload.state, upload.job and upload.job.kind) == ("received", "inspect")
    [file] = upload.files.all()
    assert (file.path, file.received, file.sha256) == ("model.onnx", file.size, SHA256["relu"])
    upload = run(upload)
    assert (upload.state, upload.error) == ("inspected", "")
    entry = AuditEntry.objects.get(action="upload.fetch")
    assert entry.summary == f"Began to fetch an upload for relu from a folder: {folder}/model.onnx"
    job = Job.objects.get(kind="fetch")
    assert (job.state, job.result) == ("succeeded", {"files": 1, "bytes": file.size})
    assert SHA256["relu"] in job.log


def test_an_empty_file_and_folders_in_folders_arrive_as_they_are(folder: Path, fetch: Callable[..., Upload]) -> None:
    (folder / "one" / "1").mkdir(parents=True)
    (folder / "one" / "1" / "model.onnx").write_bytes(relu_bytes())
    (folder / "one" / "labels.txt").touch()
    upload = fetch("folder", address=str(folder / "one"))
    assert [(file.path, file.received) for file in upload.files.all()] == [
        ("1/model.onnx", len(relu_bytes())),
        ("labels.txt", 0),
    ]
    assert run(upload).state == "inspected"


def test_a_url_is_fetched_over_rest(web: FileServer, api: APIClient) -> None:
    web.files["/models/model.onnx"] = WebFile(relu_bytes())
    body = {"model_name": "relu", "source": {"kind": "url", "address": f"{web.url}/models/model.onnx?signature=abc"}}
    answer = api.post("/api/v1/uploads", body, format="json")
    assert answer.status_code == 201
    made = answer.json()
    assert (made["state"], made["source"]) == ("receiving", f"a URL: {web.url}/models/model.onnx")
    assert "signature" not in answer.content.decode()
    job_run(job_id=made["job"])
    assert api.get(f"/api/v1/uploads/{made['id']}").json()["files"][0]["sha256"] == SHA256["relu"]
    assert all("?signature=abc" in path for path, _ in web.requests)
    assert "signature" not in str([*Job.objects.values(), *Upload.objects.values(), *AuditEntry.objects.values()])
    assert api.post(f"/api/v1/uploads/{made['id']}/fetch").status_code == 409
    for body in ({"model_name": "relu"}, {"model_name": "relu", "source": {}, "files": [{"path": "a", "size": 1}]}):
        assert api.post("/api/v1/uploads", body, format="json").status_code == 400
    unknown = api.post("/api/v1/uploads", {"model_name": "relu", "source": {"kind": "ftp"}}, format="json")
    assert (unknown.status_code, "expected a source of kind url, bucket" in unknown.content.decode()) == (400, True)


def test_a_name_comes_from_the_place_if_none_is_given(folder: Path, actor: Actor) -> None:
    (folder / "my model.v2.onnx").write_bytes(relu_bytes())
    upload = upload_fetch(
        actor=actor, model_name="", source={"kind": "folder", "address": str(folder / "my model.v2.onnx")}
    )
    assert upload.model_name == "my_model"


# -- refused before a byte is copied -----------------------------------------------------------------------------------
def test_who_may_not_upload_code_cannot_fetch_code(folder: Path, person: Callable[..., Any], actor: Actor) -> None:
    (folder / "model.py").write_text("print('here')")
    source = {"kind": "folder", "address": str(folder / "model.py")}
    with pytest.raises(Forbidden, match="permission to upload formats"):
        upload_fetch(actor=Actor(user=person("upload_data")), model_name="code", source=source)
    with pytest.raises(Forbidden):
        upload_fetch(actor=Actor(user=person("operate")), model_name="code", source=source)
    assert not Upload.objects.exists()
    assert upload_fetch(actor=actor, model_name="code", source=source).allow_code


def test_who_lost_the_right_meanwhile_fetches_nothing(folder: Path, person: Callable[..., Any]) -> None:
    user = person("upload_data")
    (folder / "model.onnx").write_bytes(relu_bytes())
    upload = upload_fetch(
        actor=Actor(user=user), model_name="relu", source={"kind": "folder", "address": str(folder / "model.onnx")}
    )
    user.user_permissions.clear()
    upload = run(upload)
    assert (upload.state, upload.job and upload.job.state) == ("receiving", "failed")
    assert not list((upload.folder / "files").iterdir())


def test_limits_and_names_are_those_of_the_browser(folder: Path, actor: Actor, settings: Any) -> None:
    (folder / "model.onnx").write_bytes(relu_bytes())
    source = {"kind": "folder", "address": str(folder / "model.onnx")}
    settings.MAX_UPLOAD_BYTES = 10
    with pytest.raises(TooLarge):
        upload_fetch(actor=actor, model_name="relu", source=source)
    with pytest.raises(Invalid, match="name"):
        upload_fetch(actor=actor, model_name="../relu", source=source)
    assert not Upload.objects.exists()


def test_one_upload_is_fetched_at_a_time_and_the_next_one_waits(
    folder: Path, actor: Actor, as_person: Callable[..., Client]
) -> None:
    (folder / "model.onnx").write_bytes(relu_bytes())
    source = {"kind": "folder", "address": str(folder / "model.onnx")}
    first, second = (upload_fetch(actor=actor, model_name=name, source=source) for name in ("one", "two"))
    Job.objects.filter(pk=first.job_id).update(state="running")
    assert run(second).state == "receiving"
    page = as_person("upload_data").get(f"/uploads/{second.pk}/").content.decode()
    assert f"Waits until job {first.job_id} has ended: Fetch the files of one" in page
    Job.objects.filter(pk=first.job_id).update(state="queued")
    assert [run(one).state for one in (first, second)] == ["received", "received"]


# -- broken off --------------------------------------------------------------------------------------------------------
def test_a_connection_that_breaks_is_continued_at_its_byte(web: FileServer, fetch: Callable[..., Upload]) -> None:
    content = os.urandom(50_000)
    web.files["/models/weights.onnx"] = WebFile(content, breaks_after=[50_000, 10_000, 0, 15_000])
    upload = fetch("url", address=f"{web.url}/models/weights.onnx")
    assert web.starts() == ["", "", "bytes=10000-", "bytes=10000-", "bytes=25000-"]
    assert web.requests[-1][1]["If-Range"] == '"1"'
    assert (upload.state, bytes_of(upload)) == ("received", content)
    assert upload.files.get().sha256 == hashlib.sha256(content).hexdigest()


def test_a_server_without_ranges_sends_all_again(web: FileServer, fetch: Callable[..., Upload]) -> None:
    content = os.urandom(50_000)
    web.files["/models/model.onnx"] = WebFile(content, ranges=False, breaks_after=[50_000, 10_000])
    assert bytes_of(fetch("url", address=f"{web.url}/models/model.onnx")) == content
    web.files["/models/model.onnx"] = WebFile(content, etag="", breaks_after=[50_000, 10_000])
    web.requests.clear()
    assert bytes_of(fetch("url", name="second", address=f"{web.url}/models/model.onnx")) == content
    assert web.starts() == ["", "", ""]  # without an ETag nothing tells that the rest is of the same file


def test_a_server_that_stays_away_fails_the_job_and_the_upload_can_be_continued(
    web: FileServer, fetch: Callable[..., Upload], actor: Actor, api: APIClient
) -> None:
    content = os.urandom(50_000)
    file = web.files["/models/model.onnx"] = WebFile(content, breaks_after=[50_000, 10_000, *[0] * fetching.MOST_TRIES])
    upload = fetch("url", address=f"{web.url}/models/model.onnx")
    assert (upload.state, upload.job and upload.job.state) == ("receiving", "failed")
    assert upload.job is not None
    assert "broke off" in upload.job.error
    assert (upload.files.get().received, bytes_of(upload)) == (10_000, content[:10_000])
    with pytest.raises(Conflict, match="send none"):
        upload_receive_chunk(upload=upload, number=0, offset=10_000, chunk=b"x", actor=actor)
    file.breaks_after = []
    assert api.post(f"/api/v1/uploads/{upload.pk}/fetch").status_code == 202
    upload = run(upload)
    assert (upload.state, bytes_of(upload)) == ("received", content)
    assert web.starts()[-1] == "bytes=10000-"


def test_a_full_disk_keeps_what_has_arrived(
    folder: Path, fetch: Callable[..., Upload], actor: Actor, settings: Any, small_disk: Path
) -> None:
    settings.DISK_RESERVE_BYTES = 0
    content = os.urandom(200_000)
    (folder / "model.onnx").write_bytes(content)
    settings.STAGING_DIR = small_disk
    upload = upload_fetch(
        actor=actor, model_name="relu", source={"kind": "folder", "address": str(folder / "model.onnx")}
    )
    (small_disk / "other").write_bytes(bytes(150_000))
    upload = run(upload)
    assert upload.job is not None
    assert (upload.state, upload.job.result["status"]) == ("receiving", 507)
    assert "can be continued when there is room" in upload.job.error
    (small_disk / "other").unlink()
    upload_fetch_again(upload=upload, actor=actor)
    upload = run(upload)
    assert (upload.state, bytes_of(upload)) == ("received", content)


# -- changed -----------------------------------------------------------------------------------------------------------
def test_a_file_that_changes_while_it_is_copied_ends_the_upload(
    folder: Path, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = folder / "model.onnx"
    model.write_bytes(bytes(5000))
    append = fetching.chunks.append

    def change(*given: Any, **more: Any) -> None:
        append(*given, **more)
        model.write_bytes(os.urandom(5000))

    upload = upload_fetch(actor=actor, model_name="relu", source={"kind": "folder", "address": str(model)})
    monkeypatch.setattr(fetching.chunks, "append", change)
    upload = run(upload)
    assert (upload.state, upload.error) == (
        "failed",
        "'model.onnx' was changed while it was fetched; begin a new upload",
    )
    with pytest.raises(Conflict, match="cannot be fetched: it is failed"):
        upload_fetch_again(upload=upload, actor=actor)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"etag": '"2"'}, "was changed"),
        ({"content": bytes(4000)}, "got another length"),
        ({"extra": 3000, "tells_length": False}, "became longer"),
    ],
)
def test_a_web_file_that_changes_ends_the_upload(
    web: FileServer, actor: Actor, change: dict[str, Any], sentence: str
) -> None:
    web.files["/models/model.onnx"] = WebFile(bytes(5000))
    upload = upload_fetch(
        actor=actor, model_name="relu", source={"kind": "url", "address": f"{web.url}/models/model.onnx"}
    )
    web.files["/models/model.onnx"] = WebFile(**{"content": bytes(5000), **change})
    upload = run(upload)
    assert (upload.state, upload.error) == (
        "failed",
        f"'model.onnx' {sentence} while it was fetched; begin a new upload",
    )
    assert sum(path.stat().st_size for path in (upload.folder / "files").iterdir()) <= 5000


def test_a_blob_of_a_cache_that_is_not_what_its_name_says_ends_the_upload(
    folder: Path, fetch: Callable[..., Upload]
) -> None:
    model = folder / "models--example--relu"
    for path in (model / "blobs", model / "snapshots" / "abc"):
        path.mkdir(parents=True)
    for name, content in ((SHA256["relu"], relu_bytes()), ("0" * 64, bytes(5000))):
        (model / "blobs" / name).write_bytes(content)
        (model / "snapshots" / "abc" / "model.onnx").unlink(missing_ok=True)
        (model / "snapshots" / "abc" / "model.onnx").symlink_to(f"../../blobs/{name}")
        upload = fetch("hugging_face", address=str(model), revision="abc")
        if name == SHA256["relu"]:
            assert (upload.state, upload.files.get().sha256) == ("received", name)
    assert upload.state == "failed"
    assert "did not have the SHA-256 that its source names" in upload.error


def test_a_file_that_is_removed_ends_the_upload(folder: Path, web: FileServer, actor: Actor) -> None:
    (folder / "model.onnx").write_bytes(relu_bytes())
    web.files["/models/model.onnx"] = WebFile(relu_bytes())
    for source in (
        {"kind": "folder", "address": str(folder / "model.onnx")},
        {"kind": "url", "address": f"{web.url}/models/model.onnx"},
    ):
        upload = upload_fetch(actor=actor, model_name="relu", source=source)
        (folder / "model.onnx").unlink(missing_ok=True)
        web.files.clear() if source["kind"] == "url" else None
        upload = run(upload)
        assert (upload.state, "was removed" in upload.error) == ("failed", True)


# -- ended by a person -------------------------------------------------------------------------------------------------
def test_a_job_that_is_cancelled_keeps_its_bytes_and_a_cancelled_upload_none(
    folder: Path, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(50_000)
    (folder / "model.onnx").write_bytes(content)
    upload = upload_fetch(
        actor=actor, model_name="relu", source={"kind": "folder", "address": str(folder / "model.onnx")}
    )
    monkeypatch.setattr(fetching, "CHECKPOINT_BYTES", 1000)
    append = fetching.chunks.append

    def stop(*given: Any, **more: Any) -> None:
        append(*given, **more)
        if more["received"] == 20_000:
            job_cancel(job=Job.objects.get(kind="fetch"), actor=actor)

    monkeypatch.setattr(fetching.chunks, "append", stop)
    upload = run(upload)
    assert (upload.state, upload.job and upload.job.state, upload.received_bytes) == ("receiving", "cancelled", 21_000)
    monkeypatch.setattr(fetching.chunks, "append", append)
    upload_fetch_again(upload=upload, actor=actor)
    job = upload_get(upload.pk).job
    assert job is not None
    upload_cancel(upload=upload_get(upload.pk), actor=actor)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (upload_get(upload.pk).state, job.state) == ("cancelled", "cancelled")
    assert not upload.folder.exists()


# -- shown -------------------------------------------------------------------------------------------------------------
def test_the_page_offers_only_what_is_allowed_and_shows_errors_at_their_field(
    folder: Path, as_person: Callable[..., Client], settings: Any
) -> None:
    client = as_person("upload_data", "upload_code")
    page = client.get("/models/new?from=folder").content.decode()
    assert "a folder</a>" in page
    assert "a URL</a>" not in page
    assert f'placeholder="{folder}/model.onnx"' in page
    outside = client.post("/models/new/fetch", {"kind": "folder", "address": "/etc/passwd", "model": "relu"})
    shown = outside.content.decode()
    assert outside.status_code == 400
    assert 'id="source-address-error" role="alert">This folder may not be read' in shown
    assert 'value="/etc/passwd"' in shown
    bad_name = client.post("/models/new/fetch", {"kind": "folder", "address": str(folder), "model": "a/b"})
    assert 'id="model-name-error" role="alert">' in bad_name.content.decode()
    settings.SOURCE_FOLDERS = []
    assert 'id="sources"' not in client.get("/models/new").content.decode()
    assert client.post("/models/new/fetch", {"kind": "folder", "address": str(folder)}).status_code == 400
    assert as_person("operate").post("/models/new/fetch", {"kind": "folder"}).status_code == 403


def test_the_page_of_an_upload_tells_what_the_job_does(
    web: FileServer, as_person: Callable[..., Client], actor: Actor
) -> None:
    client = as_person("upload_data")
    content = os.urandom(50_000)
    web.files["/models/model.onnx"] = WebFile(content, breaks_after=[50_000, 10_000, *[0] * fetching.MOST_TRIES])
    body = {"kind": "url", "address": f"{web.url}/models/model.onnx", "model": "relu"}
    answer = client.post("/models/new/fetch", body)
    assert answer.status_code == 302, answer.content.decode()
    address, upload = answer.headers["Location"], Upload.objects.get()
    page = client.get(address).content.decode()
    assert "Waiting for a worker. Fetching starts by itself." in page
    assert f"From a URL: {web.url}/models/model.onnx" in page
    run(upload)
    page = client.get(address).content.decode()
    assert "Not all is fetched" in page
    assert "broke off. What has arrived is kept." in page
    assert client.post(f"{address}fetch").status_code == 302
    job_cancel(job=Job.objects.latest("pk"), actor=actor)
    assert "Fetching was paused." in client.get(address).content.decode()
    client.post(f"{address}fetch")
    run(upload)
    assert "Inspecting" in client.get(address).content.decode()


def test_a_place_that_holds_nothing_is_told(folder: Path, actor: Actor) -> None:
    (folder / "empty").mkdir()
    for address, error in ((folder / "none", NotFound), (folder / "empty", Invalid)):
        with pytest.raises(error):
            upload_fetch(actor=actor, model_name="relu", source={"kind": "folder", "address": str(address)})
