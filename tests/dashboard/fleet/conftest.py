"""A stand-in for the API of a Kubernetes cluster, and an administrator."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from tests.dashboard.uploads.file_server import FileServer, file_server
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def cluster(authority: Authority) -> Iterator[FileServer]:
    """A stand-in for a cluster's API: it answers with the files that a test gives it."""
    with file_server(authority.sign("kubernetes")) as server:
        yield server
        for one in server.files.values():
            one.released.set()


@pytest.fixture
def root(person: Callable[..., Any]) -> APIClient:
    client = APIClient()
    client.force_authenticate(person(is_superuser=True, name="root"))
    return client
