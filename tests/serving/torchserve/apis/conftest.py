"""One server for all tests of TorchServe's inference and metrics APIs."""

from collections.abc import Iterator

import pytest

from tests.serving.frontends.raw_http import RawClient
from tests.serving.torchserve.apis.apis import Apis, apis
from tests.serving.torchserve.apis.handler_model import handler_model, streaming_model
from tests.support.model_factory import onnx_add_sub

MAX_REQUEST = 4 << 20
MAX_RESPONSE = 1 << 20


@pytest.fixture(scope="session")
def torchserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    """`acts` says what it was given or does as told, and has the name of a version of its own; `streams` answers in pieces."""
    repository = tmp_path_factory.mktemp("handlers")
    named = """
        parameters { key: "torchserve.version" value { string_value: "1.0-beta" } }
        parameters { key: "slipway.aliases" value { string_value: "{\\"trial\\": 1}" } }
    """
    handler_model(repository, extra=named)
    handler_model(repository, "busy", extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    streaming_model(repository)
    onnx_add_sub(repository)
    with apis(
        repository,
        cors_allowed_origin="https://shop.example",
        cors_allowed_methods="GET, POST",
        max_request_size=MAX_REQUEST,
        max_response_size=MAX_RESPONSE,
    ) as running:
        yield running


@pytest.fixture
def client(torchserve: Apis) -> Iterator[RawClient]:
    with RawClient(torchserve.http) as client:
        yield client
