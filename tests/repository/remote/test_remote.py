"""A repository in the cloud is copied whole or not at all. The store is fsspec's own, in memory."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from repository.core.errors import NotFound, Unreachable, UnsafePath
from repository.remote.address import parse
from repository.remote.content_cache import ContentCache
from repository.remote.repository import RemoteRepository


@pytest.fixture
def store() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.fixture
def repository(store: Any, tmp_path: Path) -> RemoteRepository:
    return RemoteRepository(parse("memory://models"), tmp_path, ContentCache(tmp_path))


def put(store: Any, path: str, content: bytes) -> None:
    store.pipe_file(f"/models/{path}", content)


def test_a_model_is_copied_and_only_changed_files_are_copied_again(store: Any, repository: RemoteRepository) -> None:
    put(store, "m/config.pbtxt", b"one")
    put(store, "m/1/model.onnx", b"1")
    repository.list_models()
    assert repository.models() == ["m"]
    folder = repository.fetch("m")
    before = (folder / "1" / "model.onnx").stat()
    put(store, "m/config.pbtxt", b"two")
    put(store, "m/2/model.onnx", b"22")
    repository.list_models()
    assert not repository.is_copied("m")
    repository.fetch("m")
    assert (folder / "config.pbtxt").read_bytes() == b"two"
    assert (folder / "2" / "model.onnx").read_bytes() == b"22"
    after = (folder / "1" / "model.onnx").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    store.rm("/models/m/1", recursive=True)
    repository.list_models()
    repository.fetch("m")
    assert sorted(path.name for path in folder.iterdir()) == ["2", "config.pbtxt"]


def test_a_version_that_changes_while_it_is_copied_is_copied_again(
    store: Any, repository: RemoteRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "m/1/a", b"old")
    put(store, "m/1/b", b"old")
    repository.list_models()
    place, changes = ContentCache.place, iter([b"new"])

    def place_and_change(self: ContentCache, *arguments: Any) -> None:
        place(self, *arguments)
        for content in changes:
            put(store, "m/1/a", content)
            put(store, "m/1/b", content)

    monkeypatch.setattr(ContentCache, "place", place_and_change)
    folder = repository.fetch("m")
    assert [(folder / "1" / name).read_bytes() for name in "ab"] == [b"new", b"new"]


def test_a_version_that_keeps_changing_is_not_copied(
    store: Any, repository: RemoteRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "m/1/a", b"0")
    repository.list_models()
    place, numbers = ContentCache.place, itertools.count(1)

    def place_and_change(self: ContentCache, *arguments: Any) -> None:
        place(self, *arguments)
        put(store, "m/1/a", b"%d" % next(numbers))

    monkeypatch.setattr(ContentCache, "place", place_and_change)
    with pytest.raises(Unreachable, match="changed in the memory model repository while it was copied"):
        repository.fetch("m")
    assert not repository.model_dir("m").exists()


def test_a_poll_counts_a_change_when_it_is_seen_twice(store: Any, repository: RemoteRepository) -> None:
    put(store, "m/1/a", b"a")
    repository.list_models()
    put(store, "m/2/a", b"a")
    known = repository.listing("m")
    repository.list_models(until_stable=True)
    assert repository.listing("m") == known
    put(store, "m/2/b", b"b")
    repository.list_models(until_stable=True)
    assert repository.listing("m") == known
    repository.list_models(until_stable=True)
    assert [row[0] for row in repository.listing("m")] == ["1/a", "2/a", "2/b"]
    store.rm("/models/m", recursive=True)
    put(store, "n/1/a", b"a")
    repository.list_models(until_stable=True)
    assert repository.models() == ["m"]
    repository.list_models(until_stable=True)
    assert repository.models() == ["n"]


def test_names_that_would_leave_the_folder_are_refused(store: Any, repository: RemoteRepository) -> None:
    store.store["/models/m/1/a\\b"] = type(store).open(store, "/models/x", "wb")
    put(store, ".hidden/1/a", b"")
    repository.list_models()
    assert repository.models() == ["m"]
    with pytest.raises(UnsafePath):
        repository.fetch("m")


def test_a_model_that_is_not_there_is_not_found(repository: RemoteRepository, store: Any) -> None:
    put(store, "m/1/a", b"")
    repository.list_models()
    with pytest.raises(NotFound, match="no model 'other' in the memory model repository"):
        repository.fetch("other")
