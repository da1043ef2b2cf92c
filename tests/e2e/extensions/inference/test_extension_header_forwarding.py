"""Headers of a request become parameters that the model sees, where the server is told so."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

from serving.cli.option_values import header_pattern
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.serving.frontends.raw_http import RawClient, infer_body
from tests.support.model_factory import python_model
from tests.support.serving_process import ServerProcess

CONFIG = """name: "parameters" backend: "python" max_batch_size: 0
input { name: "IN" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_STRING dims: 1 }
"""
SOURCE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([r.parameters().encode()], np.object_))])
            for r in requests
        ]
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    python_model(repository, "parameters", SOURCE, CONFIG)
    with ServerProcess(repository, "--http-header-forward-pattern=.*", "--grpc-header-forward-pattern=.*") as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    python_model(repository, "parameters", SOURCE, CONFIG)
    with ServerProcess(
        repository, "--http-header-forward-pattern=^X-.*", "--grpc-header-forward-pattern=^x-.*"
    ) as server:
        yield server


def test_over_http_a_header_keeps_the_name_that_the_client_has_written(server: ServerProcess) -> None:
    with RawClient(server.http) as raw:
        body = infer_body({"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]})
        answer = raw.request("POST", "/v2/models/parameters/infer", body, X_Tenant="blue", x_small="a", Y_Tenant="no")
    assert json.loads(answer.json["outputs"][0]["data"][0]) == {"X-Tenant": "blue", "x-small": "a"}


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("name", ["timeout", "sequence_id", "triton_final_response"])
def test_a_header_that_would_be_a_parameter_of_the_protocol_is_refused(
    everything: ServerProcess, kind: str, name: str
) -> None:
    with client_of(everything, kind) as client:
        inputs = client.tensors({"IN": np.array([1], np.int32)})
        message = refused(client, "INVALID_ARG", client.call, "infer", "parameters", inputs, headers={name: "5"})
        assert f"'{name}' is reserved for Triton usage" in message


def test_a_pattern_may_ask_for_the_case_as_it_is() -> None:
    pattern = header_pattern("(?-i)MY_.*")
    assert pattern is not None
    assert pattern.search("MY_header")
    assert not pattern.search("my_header")


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_headers_that_match_are_parameters(server: ServerProcess, kind: str) -> None:
    with client_of(server, kind) as client:
        inputs = client.tensors({"IN": np.array([1], np.int32)})
        headers = {"x-tenant": "blue", "other": "no"}
        found = client.call("infer", "parameters", inputs, headers=headers, parameters={"own": 5})
        text = found.as_numpy("OUT")[0].decode()
        assert '"x-tenant"' in text
        assert '"blue"' in text
        assert '"own"' in text
        assert "other" not in text
