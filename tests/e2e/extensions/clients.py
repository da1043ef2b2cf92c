"""What the tests of the protocol extensions share: one server a file, and a stock client of each protocol."""

import contextlib
import queue
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import Result, TritonClient
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

PROTOCOLS = ("http", "grpc")


@contextlib.contextmanager
def client_of(server: ServerProcess, kind: str) -> Iterator[TritonClient]:
    client = TritonClient(kind, server.http if kind.startswith("http") else server.grpc)
    try:
        yield client
    finally:
        client.close()


class Calls:
    """Requests under way, each in a thread with a client of its own."""

    def __init__(self, server: ServerProcess, kind: str) -> None:
        self._server = server
        self._kind = kind
        self._executor = ThreadPoolExecutor(16)

    def begin(self, model: str, inputs: dict[str, Any], pending: int | None = None, **options: Any) -> Future[Result]:
        """`pending`: return when so many requests wait in the model's queue."""
        call = self._executor.submit(self._infer, model, inputs, options)
        if pending is not None:
            wait_until(
                lambda: pending_requests(self._server, model) == pending, what=f"{pending} requests in the queue"
            )
        return call

    def close(self) -> None:
        self._executor.shutdown()

    def _infer(self, model: str, inputs: dict[str, Any], options: dict[str, Any]) -> Result:
        with client_of(self._server, self._kind) as client:
            return client.infer(model, inputs, **options)


@contextlib.contextmanager
def calls_to(server: ServerProcess, kind: str) -> Iterator[Calls]:
    calls = Calls(server, kind)
    try:
        yield calls
    finally:
        calls.close()


def pending_requests(server: ServerProcess, model: str) -> int:
    text = httpx.get(server.metrics_url, timeout=PATIENCE_S).text
    [count] = re.findall(rf'^nv_inference_pending_request_count{{model="{model}",version="1"}} (\d+)$', text, re.M)
    return int(count)


class Stream:
    """A stock client's stream of requests: `next` gives a result, or raises the error that came in its place."""

    def __init__(self, client: TritonClient, **options: Any) -> None:
        self._client = client
        self._answers: queue.Queue[Any] = queue.Queue()
        client.client.start_stream(lambda result, error: self._answers.put((result, error)), **options)

    def send(self, model: str, inputs: dict[str, Any], **options: Any) -> None:
        self._client.client.async_stream_infer(model, self._client.tensors(inputs), **options)

    def next(self) -> Any:
        result, error = self._answers.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return result


@contextlib.contextmanager
def stream_of(server: ServerProcess, **options: Any) -> Iterator[Stream]:
    """`options`: those of the stock client's `start_stream`."""
    with client_of(server, "grpc") as client:
        try:
            yield Stream(client, **options)
        finally:
            client.client.stop_stream()


def refused(client: TritonClient, code: str, call: Any, *arguments: Any, **options: Any) -> str:
    """The message of a call that must fail with this neutral code."""
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    assert caught.value.status() == client.status(code), caught.value
    return str(caught.value.message())
