"""The parameters extension with the stock clients: parameters of a request reach the model, those of its response come back."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import client_of, stream_of
from tests.support.model_factory import python_model, tensors_text
from tests.support.serving_process import ServerProcess

# What a request brings goes back as text and, where `reply` does not say otherwise, as parameters of its response.
ECHO = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(json.loads(request.parameters())) for request in requests]

        def answer(self, given):
            text = pb_utils.Tensor("TEXT", np.array([json.dumps(given).encode()], np.object_))
            try:
                return pb_utils.InferenceResponse([text], parameters=json.loads(given.get("reply", "null")) or given)
            except pb_utils.TritonModelException as error:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
"""
INPUTS = {"IN": np.ones(1, np.int32)}
KINDS = {"text": "blue \u2713", "empty": "", "yes": True, "no": False, "small": -5, "large": 2**62}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    tensors = tensors_text("input", [("IN", "INT32", [1])]) + tensors_text("output", [("TEXT", "BYTES", [1])])
    python_model(repository, "echo", ECHO, f'backend: "python" {tensors}')
    with ServerProcess(repository) as server:
        yield server
        assert "Traceback" not in server.log


def parameters_of(client: TritonClient, response: Any) -> dict[str, Any]:
    if client.protocol == "http":
        return dict(response["parameters"])
    return {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in response.parameters.items()}


def test_parameters_of_every_kind_reach_the_model_and_come_back(client: TritonClient) -> None:
    result = client.call("infer", "echo", client.tensors(INPUTS), parameters=KINDS)
    found = parameters_of(client, result.get_response())
    assert found == KINDS
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in KINDS.items()}


def test_a_float_reaches_the_model_and_is_no_parameter_of_a_response(client: TritonClient) -> None:
    """As in Triton, whose Python backend takes booleans, whole numbers and texts from a model."""
    result = client.call("infer", "echo", client.tensors(INPUTS), parameters={"part": 0.25, "reply": '{"x": 1}'})
    assert json.loads(result.as_numpy("TEXT")[0])["part"] == 0.25
    with pytest.raises(InferenceServerException, match=r"whole numbers or booleans, by name; 'part' is 0\.25"):
        client.call("infer", "echo", client.tensors(INPUTS), parameters={"part": 0.25})


def test_parameters_pass_a_stream(server: ServerProcess) -> None:
    with stream_of(server) as stream, client_of(server, "grpc") as client:
        stream.send("echo", INPUTS, parameters={"tenant": "blue"})
        assert parameters_of(client, stream.next().get_response())["tenant"] == "blue"


def test_the_servers_own_parameters_are_not_the_models(client: TritonClient) -> None:
    result = client.call("infer", "echo", client.tensors(INPUTS), timeout=10_000_000, priority=0, parameters={"own": 1})
    assert result.as_numpy("TEXT")[0] == b'{"own": 1}'


def test_the_server_says_that_it_has_the_extension(client: TritonClient) -> None:
    assert "parameters" in client.described("get_server_metadata")["extensions"]
