"""A repository with pointers, as the dashboard writes it: read by hash, from a real S3 interface."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from repository.core.errors import InvalidConfig, RepositoryError, Unreachable
from repository.remote.address import parse
from repository.remote.content_cache import ContentCache
from repository.remote.pointers import read_pointer
from repository.remote.repository import RemoteRepository
from tests.support.faulty_store import FaultyStore
from tests.support.object_store import BUCKET, ObjectStore


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[FaultyStore]:
    with FaultyStore(store.endpoint) as proxy:
        yield proxy


def publish(store: ObjectStore, name: str, versions: Sequence[int] = (), /, **files: bytes) -> None:
    """Publish a model as the dashboard does. files: content by path, with "__" for a "/"."""
    store.put("managed/slipway.json", b'{"format": 1}')
    entries = {}
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        store.put(f"managed/objects/{sha256}", content)
        entries[path.replace("__", "/")] = {"sha256": sha256, "size": len(content)}
    pointer = {"format": 1, "model": name, "files": entries, "versions": list(versions)}
    store.put(f"managed/models/{name}.json", json.dumps(pointer).encode())


def opened(proxy: FaultyStore, folder: Path, name: str = "a") -> RemoteRepository:
    place = parse(f"s3://127.0.0.1:{proxy.port}/{BUCKET}/managed")
    return RemoteRepository(place, folder / name, ContentCache(folder / "cache", 1 << 30))


@pytest.mark.long
def test_models_are_read_by_their_pointers_and_content_by_its_hash(
    store: ObjectStore, proxy: FaultyStore, tmp_path: Path
) -> None:
    publish(store, "one", config=b"same", **{"1__model": b"first"})
    publish(store, "two", config=b"same")
    repository = opened(proxy, tmp_path)
    repository.list_model("one")
    assert (repository.fetch("one") / "1" / "model").read_bytes() == b"first"
    repository.list_models()
    assert repository.models() == ["one", "two"]
    proxy.fetched = 0
    assert (repository.fetch("two") / "config").read_bytes() == b"same"
    assert proxy.fetched == 0  # no byte of content, and no pointer that had not changed

    store.put("managed/models/two.json", b'{"format": 1, "model": "one", "files": {}}')
    publish(store, "one", config=b"same", **{"1__model": b"second"})
    repository.list_models()
    assert repository.models() == ["one", "two"]
    assert (repository.fetch("one") / "1" / "model").read_bytes() == b"second"
    with pytest.raises(InvalidConfig, match="the pointer of model 'two' is that of another model"):
        repository.list_model("two")

    proxy.fault = "busy"
    later = opened(proxy, tmp_path, "later")
    assert later.use_kept()
    assert (later.fetch("one") / "1" / "model").read_bytes() == b"second"

    proxy.fault = ""
    store.put("managed/slipway.json", b'{"format": 2}')
    with pytest.raises(Unreachable, match=r"^slipway.json of the s3 model repository has format 2, and this release"):
        repository.list_models()
    assert repository.models() == ["one", "two"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"other", "the content with SHA-256 [0-9a-f]{12}… has another hash in the store"),
        (None, "content of model 'one' is missing in the s3 model repository"),
    ],
)
def test_content_that_is_not_what_its_pointer_says_is_refused(
    store: ObjectStore, proxy: FaultyStore, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    publish(store, "one", model=b"right")
    place = f"managed/objects/{hashlib.sha256(b'right').hexdigest()}"
    if content is None:
        store.delete(place)
    else:
        store.put(place, content)
    repository = opened(proxy, tmp_path)
    repository.list_models()
    with pytest.raises(Unreachable, match=sentence):
        repository.fetch("one")
    proxy.fetched = 0
    with pytest.raises(Unreachable, match=sentence):
        repository.fetch("one")
    assert proxy.fetched == 0 or content is None  # wrong content is not downloaded at each poll
    assert not repository.model_dir("one").exists()


@pytest.mark.long
def test_a_version_without_files_has_its_folder(store: ObjectStore, proxy: FaultyStore, tmp_path: Path) -> None:
    publish(store, "ensemble", [1, 2], config=b"c", **{"2__model": b"m"})
    repository = opened(proxy, tmp_path)
    repository.list_models()
    folder = repository.fetch("ensemble")
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == ["1", "2", "2/model", "config"]
    later = opened(proxy, tmp_path, "later")
    proxy.fault = "busy"
    assert later.use_kept()
    assert (later.fetch("ensemble") / "1").is_dir()


def entry(sha256: object = "0" * 64, size: object = 1) -> dict[str, object]:
    return {"sha256": sha256, "size": size}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[" * 100_000,
        b"\xff",
        {"model": "m", "files": {}},
        {"format": 2, "model": "m", "files": {}},
        {"format": 1, "model": "n", "files": {}},
        {"format": 1, "model": "m", "files": []},
        {"format": 1, "model": "m", "files": {"../a": entry()}},
        {"format": 1, "model": "m", "files": {"\ud800": entry()}},
        {"format": 1, "model": "m", "files": {"a": entry(sha256="../" * 21 + "a")}},
        {"format": 1, "model": "m", "files": {"a": entry(size=True)}},
        {"format": 1, "model": "m", "files": {"a": entry(size=-1)}},
        {"format": 1, "model": "m", "files": {"a": []}},
        {"format": 1, "model": "m", "files": {}, "versions": ["../1"]},
    ],
)
def test_a_pointer_that_is_not_valid_is_refused(document: object) -> None:
    with pytest.raises(RepositoryError):
        read_pointer(document if isinstance(document, bytes) else json.dumps(document).encode(), "m")
