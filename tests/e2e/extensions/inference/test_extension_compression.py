"""Compression with the stock clients: requests and answers, over HTTP and gRPC."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import client_of, stream_of
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess

ALGORITHMS = (None, "gzip", "deflate")
LARGE = {"INPUT0": (np.arange(200_000) % 7).astype(np.float32).reshape(1, -1)}
SMALL = {"INPUT0": np.ones((1, 3), np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_identity(repository)
    with ServerProcess(repository, "--grpc-infer-response-compression-level=low") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture
def http(server: ServerProcess) -> Iterator[TritonClient]:
    with client_of(server, "http") as client:
        yield client


@pytest.mark.parametrize("asked", ALGORITHMS)
@pytest.mark.parametrize("sent", ALGORITHMS)
@pytest.mark.parametrize("inputs", [LARGE, SMALL], ids=["large", "small"])
def test_http_is_compressed_either_way(
    http: TritonClient, sent: str | None, asked: str | None, inputs: dict[str, Any]
) -> None:
    options = {"request_compression_algorithm": sent, "response_compression_algorithm": asked}
    answer = http.infer("identity", inputs, **options)
    assert np.array_equal(answer.outputs["OUTPUT0"], inputs["INPUT0"])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("inputs", [LARGE, SMALL], ids=["large", "small"])
def test_grpc_requests_are_compressed(server: ServerProcess, algorithm: str, inputs: dict[str, Any]) -> None:
    with client_of(server, "grpc") as client:
        answer = client.infer("identity", inputs, compression_algorithm=algorithm)
        assert np.array_equal(answer.outputs["OUTPUT0"], inputs["INPUT0"])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_streams_are_compressed(server: ServerProcess, algorithm: str) -> None:
    with stream_of(server, compression_algorithm=algorithm) as stream:
        sent = [LARGE, SMALL, LARGE, SMALL, SMALL]  # a small answer waits behind a large one that is being compressed
        for inputs in sent:
            stream.send("identity", inputs)
        for inputs in sent:
            assert np.array_equal(stream.next().as_numpy("OUTPUT0"), inputs["INPUT0"])
