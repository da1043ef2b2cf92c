"""Headers of a request become parameters that the model sees, where the server is told so."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.extension_clients import PROTOCOLS, client_of
from tests.model_factory import python_model
from tests.serving_process import ServerProcess

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    python_model(repository, "parameters", SOURCE, CONFIG)
    with ServerProcess(
        repository, "--http-header-forward-pattern=^X-.*", "--grpc-header-forward-pattern=^x-.*"
    ) as server:
        yield server


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
