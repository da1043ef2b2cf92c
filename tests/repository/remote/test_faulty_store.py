"""Faults of real S3 interfaces: a model is copied whole or not at all, what is known stays, and one sentence says why."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository.core.errors import Unreachable
from repository.remote import address
from repository.remote.address import parse
from repository.remote.content_cache import ContentCache
from repository.remote.repository import RemoteRepository
from tests.support.faulty_store import FaultyStore
from tests.support.object_store import BUCKET, ObjectStore, SwiftStore, both_stores

pytestmark = [pytest.mark.long, both_stores("store")]
MODEL = os.urandom(200_000)


@pytest.fixture(autouse=True)
def model(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of five chunks, and a store that is given up soon."""
    monkeypatch.setattr(address, "SILENCE_S", 1.0 if isinstance(store, SwiftStore) else 0.2)
    monkeypatch.setattr("repository.remote.repository.CHUNK_BYTES", 50_000)
    store.put("models/m/1/model.bin", MODEL)
    store.put("models/m/config.pbtxt", b"one")


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[FaultyStore]:
    with FaultyStore(store.endpoint) as proxy:
        yield proxy


def opened(proxy: FaultyStore, folder: Path, name: str = "a", limit: int | None = 1 << 30) -> RemoteRepository:
    """A repository as a process of its own opens it: a cache that others share, and a folder of its own."""
    place = parse(f"s3://127.0.0.1:{proxy.port}/{BUCKET}/models")
    return RemoteRepository(place, folder / name, ContentCache(folder / "cache", limit), may_be_empty=False)


def model_of(folder: Path) -> bytes:
    return (folder / "1" / "model.bin").read_bytes()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("hanging", "the s3 model repository cannot be reached"),
        ("forbidden list", "access to the s3 model repository was denied: check its credentials and permissions"),
        ("empty list", "the s3 model repository has no model: check its address"),
        ("busy", "the s3 model repository cannot be reached"),
    ],
)
def test_a_list_that_fails_leaves_what_is_known(
    store: ObjectStore, proxy: FaultyStore, tmp_path: Path, fault: str, sentence: str
) -> None:
    repository = opened(proxy, tmp_path)
    repository.list_models()
    folder = repository.fetch("m")
    proxy.fault = fault
    with pytest.raises(Unreachable, match=sentence):
        repository.list_models(until_stable=True)
    assert repository.models() == ["m"]
    assert model_of(repository.fetch("m")) == MODEL
    later = opened(proxy, tmp_path, "later")
    with pytest.raises(Unreachable, match=sentence):
        later.list_models()
    assert later.use_kept()
    assert model_of(later.fetch("m")) == MODEL
    proxy.fault = ""
    store.put("models/m/config.pbtxt", b"two")
    for each in (repository, later):
        for _ in range(2):
            each.list_models(until_stable=True)
        assert (each.fetch("m") / "config.pbtxt").read_bytes() == b"two"
        assert not each.from_cache
    assert model_of(folder) == MODEL


@pytest.mark.parametrize("fault", ["truncated body", "hanging"])
def test_a_copy_that_fails_leaves_no_half_model_and_goes_on_later(
    proxy: FaultyStore, tmp_path: Path, fault: str
) -> None:
    repository = opened(proxy, tmp_path)
    repository.list_models()
    begun: list[int] = []

    def break_off() -> None:
        begun.append(proxy.fetched)
        proxy.fault = fault if proxy.fetched > 100_000 else ""

    proxy.after_chunk = break_off
    with pytest.raises(Unreachable, match="the s3 model repository cannot be reached"):
        repository.fetch("m")
    assert not repository.model_dir("m").exists()
    proxy.after_chunk, proxy.fault, proxy.fetched = lambda: None, "", 0
    later = opened(proxy, tmp_path, "later")
    later.list_models()
    assert model_of(later.fetch("m")) == MODEL
    assert proxy.fetched <= len(MODEL) - 100_000 + 3


def test_a_slow_store_is_waited_for(proxy: FaultyStore, tmp_path: Path) -> None:
    proxy.fault = "slow"
    repository = opened(proxy, tmp_path)
    repository.list_models()
    assert model_of(repository.fetch("m")) == MODEL


def test_a_list_that_is_older_than_the_objects_serves_no_mixture(
    store: ObjectStore, proxy: FaultyStore, tmp_path: Path
) -> None:
    repository = opened(proxy, tmp_path)
    repository.list_models()
    repository.list_model("m")
    proxy.fault = "stale list"
    store.put("models/m/1/model.bin", MODEL[::-1])
    with pytest.raises(Unreachable, match="model 'm' changed in the s3 model repository while it was copied"):
        repository.fetch("m")
    assert not repository.model_dir("m").exists()
    proxy.fault = ""
    repository.list_models()
    assert model_of(repository.fetch("m")) == MODEL[::-1]


def test_an_object_that_changes_between_two_chunks_is_not_mixed(
    store: ObjectStore, proxy: FaultyStore, tmp_path: Path
) -> None:
    repository = opened(proxy, tmp_path)
    repository.list_models()

    def change() -> None:
        if proxy.fetched > 60_000:
            proxy.after_chunk = lambda: None
            store.put("models/m/1/model.bin", MODEL[::-1])

    proxy.after_chunk = change
    assert model_of(repository.fetch("m")) == MODEL[::-1]


def test_a_second_process_fetches_nothing_and_damaged_content_again(proxy: FaultyStore, tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        proxy.fetched = 0
        repository = opened(proxy, tmp_path, name)
        repository.list_models()
        assert model_of(repository.fetch("m")) == MODEL
        assert proxy.fetched == {"first": len(MODEL) + 3, "second": 0, "third": len(MODEL)}[name]
        if name == "second":
            for kept in (tmp_path / "cache" / "objects").iterdir():
                if kept.stat().st_size == len(MODEL):
                    kept.chmod(0o644)
                    kept.write_bytes(MODEL[:-1] + b"?")
