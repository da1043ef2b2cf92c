"""Archives that are registered by an address: the allowed ones, and the files that stay in the store."""

import errno
import http.server
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from repository.torchserve.archive_names import default_name, hide_secrets
from repository.torchserve.model_archive import read_manifest
from serving.torchserve.registry.errors import TorchServeError
from serving.torchserve.registry.model_store import ModelStore, StoredArchive
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.torchserve_archives import archive


class _Files(http.server.BaseHTTPRequestHandler):
    """Serves the archive at /noop.mar, and redirects, half an archive and what is none elsewhere."""

    content = b""
    go_on = threading.Event()  # what late.mar waits for

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name == "to-another-host.mar":
            self._redirect(f"http://localhost:{self.server.server_address[1]}/noop.mar")
        elif name == "to-a-file.mar":
            self._redirect("file:///etc/passwd")
        elif name == "there.mar":
            self._redirect("/models/noop.mar")
        elif name == "missing.mar":
            self.send_error(404)
        else:
            body = b"no archive" if name == "junk.mar" else self.content
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if name == "late.mar":
                self.go_on.wait(PATIENCE_S)
            self.wfile.write(body[: len(body) // 2] if name == "half.mar" else body)

    def _redirect(self, place: str) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Tests need no log of requests."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    _Files.content = archive(tmp_path_factory.mktemp("served") / "noop.mar").read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path, address: str) -> ModelStore:
    folder = tmp_path / "store"
    folder.mkdir()
    return ModelStore(folder, [f"{address}/.*", f"file://{tmp_path}/allowed/.*"])


def find(store: ModelStore, url: str) -> StoredArchive:
    return store.find(url, read_manifest)


def refused(store: ModelStore, url: str) -> TorchServeError:
    with pytest.raises(TorchServeError) as caught:
        find(store, url)
    return caught.value


def files(store: ModelStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_an_archive_comes_from_an_address_that_is_allowed(store: ModelStore, address: str) -> None:
    found = find(store, f"{address}/models/noop.mar")
    assert found == StoredArchive(store.folder / "noop.mar", fetched=True)
    assert read_manifest(found.path).name == "noop"
    again = refused(store, f"{address}/other/noop.mar")
    assert (again.status, again.message) == (500, "Model file already exists noop.mar")
    store.release(found)
    assert files(store) == []


def test_a_redirection_to_an_allowed_address_is_followed(store: ModelStore, address: str) -> None:
    assert find(store, f"{address}/there.mar").path.name == "there.mar"
    for name, status in (("to-another-host.mar", 404), ("to-a-file.mar", 400)):
        assert refused(store, f"{address}/{name}").status == status
        assert name not in files(store)


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("missing.mar", 400, "DownloadArchiveException"),
        ("half.mar", 400, "DownloadArchiveException"),
        ("junk.mar", 400, "InvalidModelException"),
    ],
)
def test_an_incomplete_archive_leaves_nothing_in_the_store(
    store: ModelStore, address: str, name: str, status: int, kind: str
) -> None:
    error = refused(store, f"{address}/{name}")
    assert (error.status, error.type) == (status, kind)
    assert files(store) == []


@pytest.mark.parametrize("url", ["http://elsewhere.example/noop.mar", "file:///etc/passwd", "FILE:///etc/passwd"])
def test_an_address_that_is_not_allowed_is_not_asked(store: ModelStore, url: str) -> None:
    error = refused(store, url)
    assert (error.status, error.message) == (404, f"Given URL {url} does not match any allowed URL(s)")


def test_a_file_is_copied_from_where_that_is_allowed(store: ModelStore, tmp_path: Path) -> None:
    source = archive(tmp_path / "allowed" / "near.mar")
    assert find(store, f"file://{source}").path.read_bytes() == source.read_bytes()
    secret = tmp_path / "allowed" / "secret.txt"
    secret.write_text("password")
    error = refused(store, f"file://{secret}")
    assert error.status == 400
    assert "password" not in error.message
    assert files(store) == [".slipway-fetched-near.mar", "near.mar"]


def test_an_archive_comes_out_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    content = archive(tmp_path / "made" / "noop.mar").read_bytes()
    (tmp_path / "store").mkdir()
    with ObjectStore() as bucket:
        bucket.put("production/noop.mar", content)
        address = f"s3://127.0.0.1:{bucket.port}/{BUCKET}/production"
        store = ModelStore(tmp_path / "store", [f"{address}/.*"])
        assert find(store, f"{address}/noop.mar").path.read_bytes() == content
        assert refused(store, f"{address}/other.mar").type == "DownloadArchiveException"
        elsewhere = refused(ModelStore(tmp_path / "store", ["file://.*", "http(s)?://.*"]), f"{address}/noop.mar")
        assert elsewhere.status == 404
    assert "secret" not in caplog.text


def test_a_name_leads_to_nothing_outside_of_the_store(store: ModelStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    archive(outside / "noop.mar")
    (store.folder / "inside").mkdir()
    for url in (str(outside), str(outside / "noop.mar"), "a/../../outside", ".hidden", "noop.mar\n", "x" * 5000):
        assert refused(store, url).status == 404
    assert find(store, str(store.folder / "inside")).path == store.folder / "inside"


def test_a_file_of_a_killed_server_is_fetched_again(store: ModelStore, address: str) -> None:
    url = f"{address}/noop.mar"
    path, _, lock = astuple(find(store, url))
    os.close(lock)  # as the kernel does
    (store.folder / ".slipway-arriving-abc").write_bytes(b"half")
    again = ModelStore(store.folder, [".*"])
    assert files(again) == [".slipway-fetched-noop.mar", "noop.mar"]
    assert refused(again, f"{address}/other/noop.mar").status == 500
    assert find(again, url).path == path
    assert refused(again, url).message == "Model file already exists noop.mar"


def test_two_servers_have_one_file_of_an_address_until_the_last_lets_go_of_it(store: ModelStore, address: str) -> None:
    url = f"{address}/noop.mar"
    other = ModelStore(store.folder, [".*"])
    first = find(store, url)
    was = first.path.stat().st_ino
    second, by_name = find(other, url), find(other, "noop.mar")
    assert (second, second.path.stat().st_ino) == (first, was)
    assert refused(other, f"{address}/other/noop.mar").message == "Model file already exists noop.mar"
    store.release(first)
    other.release(by_name)
    assert first.path.stat().st_ino == was
    other.release(second)
    assert files(store) == []


def test_servers_that_fetch_one_address_at_the_same_time_all_have_it(store: ModelStore, address: str) -> None:
    stores = [ModelStore(store.folder, [".*"]) for _ in range(8)]
    with ThreadPoolExecutor(len(stores)) as threads:
        found = list(threads.map(lambda one: find(one, f"{address}/noop.mar"), stores))
        assert {one.path for one in found} == {store.folder / "noop.mar"}
        assert files(store) == [".slipway-fetched-noop.mar", "noop.mar"]
        list(threads.map(ModelStore.release, stores, found))
    assert files(store) == []


def test_a_file_that_another_server_is_fetching_is_left_alone(store: ModelStore, address: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(find, store, f"{address}/late.mar")
        wait_until(lambda: files(store) != [])
        ModelStore(store.folder, [".*"])
        _Files.go_on.set()
        assert found.result().path == store.folder / "late.mar"


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    store: ModelStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkstemp, []

    def make_and_lose(**given: Any) -> tuple[int, str]:
        made.append(make(**given))
        if len(made) == 1:
            ModelStore(store.folder, [".*"])  # another server starts
        return made[-1]

    monkeypatch.setattr(tempfile, "mkstemp", make_and_lose)
    assert find(store, f"{address}/noop.mar").path.is_file()
    assert len(made) == 2
    assert files(store) == [".slipway-fetched-noop.mar", "noop.mar"]


def test_a_store_without_hard_links_takes_archives_too(
    store: ModelStore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)  # as a mounted object store does
    assert find(store, f"{address}/noop.mar").path.is_file()
    assert files(store) == [".slipway-fetched-noop.mar", "noop.mar"]


def test_a_store_that_cannot_be_written_is_an_error(store: ModelStore, address: str) -> None:
    store.folder.rmdir()
    answer = refused(store, f"{address}/noop.mar")
    assert (answer.status, answer.message) == (500, f"Failed to save model: {address}/noop.mar")


def test_a_log_has_no_key_of_an_address() -> None:
    assert hide_secrets("https://me:secret@host/noop.mar?signature=secret") == "https://host/noop.mar"
    assert hide_secrets("noop.mar") == "noop.mar"


@pytest.mark.parametrize(
    ("url", "name"), [("a/b-c.mar", "b_c"), ("https://host/x.y.mar", "x_y"), ("folder", "folder"), ("_a.mar", "_a")]
)
def test_a_model_without_a_name_has_that_of_its_file(url: str, name: str) -> None:
    assert default_name(url) == name
