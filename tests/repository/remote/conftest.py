"""A real S3 interface for the tests of repositories in the cloud."""

from collections.abc import Iterator

import pytest

from tests.support.object_store import ObjectStore


@pytest.fixture(scope="package")
def only_store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def store(only_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An empty store, whose credentials are in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    only_store.empty()
    return only_store
