"""Stock clients of the server that a test's file starts."""

from collections.abc import Iterator

import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of
from tests.support.serving_process import ServerProcess


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    """One of each protocol."""
    with client_of(server, request.param) as client:
        yield client
