"""Real S3 interfaces for the tests of repositories in the cloud."""

from collections.abc import Iterator

import pytest

from tests.support.object_store import ObjectStore, Stores


@pytest.fixture(scope="package")
def stores() -> Iterator[Stores]:
    with Stores() as stores:
        yield stores


@pytest.fixture
def store(stores: Stores, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An empty store, whose credentials are in the environment."""
    found = stores.empty(getattr(request, "param", ObjectStore))
    for name, value in found.credentials.items():
        monkeypatch.setenv(name, value)
    return found
