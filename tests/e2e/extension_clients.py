"""What the tests of the protocol extensions share: one server a file, and a stock client of each protocol."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.tritonclient_adapter import TritonClient
from tests.serving_process import ServerProcess

PROTOCOLS = ("http", "grpc")


@contextlib.contextmanager
def client_of(server: ServerProcess, kind: str) -> Iterator[TritonClient]:
    client = TritonClient(kind, server.http if kind.startswith("http") else server.grpc)
    try:
        yield client
    finally:
        client.close()


def refused(client: TritonClient, code: str, call: Any, *arguments: Any, **options: Any) -> str:
    """The message of a call that must fail with this neutral code."""
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    assert caught.value.status() == client.status(code), caught.value
    return str(caught.value.message())
