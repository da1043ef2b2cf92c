"""Ensembles with the stock clients: any graph, optional inputs, failures that name their step, back-pressure, refusals."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, calls_to, refused, stream_of
from tests.e2e.gated_model import GatedModel
from tests.support import model_factory
from tests.support.pipelines import WRONG, X, chain, ensemble, step, wrong_pipeline
from tests.support.serving_process import PATIENCE_S, ServerProcess

INPUTS = {"X": np.array([[1], [2]], np.float32)}
ONE = {"X": np.ones((1, 1), np.float32)}
OPTIONAL = '{name: "B" data_type: TYPE_FP32 dims: [1] optional: true}'
# Y = A + B, where a B that does not come is 100; what is negative is refused.
PICKY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer({tensor.name(): tensor.as_numpy() for tensor in r.inputs()}) for r in requests]

        def answer(self, given):
            if given["A"].min() < 0:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("A is negative", pb_utils.TritonError.INVALID_ARG))
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", given["A"] + given.get("B", 100))])
"""


def write_graph(repository: Path) -> None:
    """graph = 6 * X + 2 * X over branches that meet again, one of them an ensemble of its own."""
    ensemble(repository, chain(repository), "inner")
    model_factory.onnx_add_sub(repository, "sum", dims=[1])
    steps = (
        step("sum", {"INPUT0": "six", "INPUT1": "two"}, {"OUTPUT0": "Y", "OUTPUT1": "difference"})
        + step("inner", {"X": "X"}, {"Y": "six"})
        + step("double", {"INPUT0": "X"}, {"OUTPUT0": "two"})
    )
    outputs = ", ".join(f'{{name: "{name}" data_type: TYPE_FP32 dims: [1]}}' for name in ("Y", "difference", "two"))
    ensemble(repository, steps, "graph", outputs=outputs)


def write_stream(repository: Path) -> None:
    """stream = 2 * 1, 2 * 2, ... 2 * X, a response for each."""
    count = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    for number in range(int(request.inputs()[0].as_numpy()[0, 0])):
                        out = pb_utils.Tensor("OUT", np.array([[number + 1]], np.float32))
                        sender.send(pb_utils.InferenceResponse([out]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    tensors = """input { name: "N" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
        model_transaction_policy { decoupled: true }"""
    model_factory.python_model(repository, "count", count, f'backend: "python" max_batch_size: 8 {tensors}')
    steps = step("count", {"N": "X"}, {"OUT": "n"}) + step("double", {"INPUT0": "n"}, {"OUTPUT0": "Y"})
    ensemble(repository, steps, "stream")


def write_picky(repository: Path) -> None:
    """with_optional = picky(2 * X, B)"""
    tensors = f"""input [{{name: "A" data_type: TYPE_FP32 dims: [1]}}, {OPTIONAL}]
        output [{{name: "Y" data_type: TYPE_FP32 dims: [1]}}]"""
    model_factory.python_model(repository, "picky", PICKY, f'backend: "python" max_batch_size: 8 {tensors}')
    steps = step("double", {"INPUT0": "X"}, {"OUTPUT0": "m"}) + step("picky", {"A": "m", "B": "B"}, {"Y": "Y"})
    ensemble(repository, steps, "with_optional", inputs=f"{X}, {OPTIONAL}")


@pytest.fixture(scope="module")
def reasons() -> dict[str, str]:
    """Name of a wrong pipeline -> a pattern of why it is refused."""
    return {}


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> GatedModel:
    repository = tmp_path_factory.mktemp("gated-models")
    return GatedModel(repository, tmp_path_factory.mktemp("gate"), extra="instance_group { count: 2 }")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, gated: GatedModel, reasons: dict[str, str]
) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_graph(repository)
    write_picky(repository)
    write_stream(repository)
    limited = "max_inflight_requests: 1 " + step("gated", {"INPUT0": "X"}, {"OUTPUT0": "Y"})
    ensemble(repository, limited, "limited", max_batch_size=1)
    for number, case in enumerate(WRONG):
        reasons[case] = wrong_pipeline(repository, case, f"wrong_{number}")
    flags = [f"--load-model={name}" for name in ("graph", "with_optional", "stream", "limited")]
    with ServerProcess([repository, gated.repository], "--model-control-mode=explicit", *flags) as server:
        yield server
        assert "Traceback" not in server.log


def test_branches_meet_again_and_a_step_may_be_an_ensemble(client: TritonClient) -> None:
    found = client.infer("graph", INPUTS).outputs
    assert {name: array.ravel().tolist() for name, array in found.items()} == {
        "Y": [8, 16],
        "difference": [4, 8],
        "two": [2, 4],
    }


def test_only_the_outputs_that_are_asked_for_come(client: TritonClient) -> None:
    assert set(client.infer("graph", INPUTS, ["difference"]).outputs) == {"difference"}


def test_an_ensemble_answers_in_a_stream(server: ServerProcess) -> None:
    with stream_of(server) as stream:
        for value in (1, 2, 3):
            stream.send("graph", {"X": np.full((1, 1), value, np.float32)}, request_id=str(value))
        found = [stream.next() for _ in range(3)]
        assert [(one.get_response().id, one.as_numpy("Y").item()) for one in found] == [("1", 8), ("2", 16), ("3", 24)]


def test_a_decoupled_step_makes_the_ensemble_decoupled(server: ServerProcess) -> None:
    with stream_of(server) as stream:
        for count in (3, 0, 2):
            inputs = {"X": np.full((1, 1), count, np.float32)}
            stream.send("stream", inputs, request_id=str(count), enable_empty_final_response=True)
        values: dict[str, list[float]] = {"3": [], "0": [], "2": []}
        ended: list[str] = []
        while len(ended) < 3:
            result = stream.next()
            response = result.get_response()
            if response.outputs:
                values[response.id].append(result.as_numpy("Y").item())
            if response.parameters["triton_final_response"].bool_param:
                ended.append(response.id)
        assert values == {"3": [2, 4, 6], "0": [], "2": [2, 4]}


def test_a_decoupled_ensemble_answers_streams_alone(client: TritonClient) -> None:
    assert client.described("get_model_config", "stream")["model_transaction_policy"] == {"decoupled": True}
    message = refused(client, "UNSUPPORTED", client.infer, "stream", ONE)
    assert "decoupled transaction policy" in message


def test_an_optional_input_may_be_left_out_of_the_request(client: TritonClient) -> None:
    assert client.infer("with_optional", ONE).outputs["Y"].item() == 102
    assert client.infer("with_optional", ONE | {"B": np.full((1, 1), 5, np.float32)}).outputs["Y"].item() == 7
    assert "'X'" in refused(client, "INVALID_ARG", client.infer, "with_optional", {"B": ONE["X"]})


def test_the_failure_of_a_step_names_it_and_keeps_its_code(client: TritonClient) -> None:
    message = refused(client, "INVALID_ARG", client.infer, "with_optional", {"X": -ONE["X"]})
    assert message.endswith("in ensemble 'with_optional', step 'picky': A is negative")


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_no_more_requests_than_allowed_are_inside(server: ServerProcess, gated: GatedModel, kind: str) -> None:
    with calls_to(server, kind) as calls:
        try:
            first = calls.begin("limited", ONE, request_id="first")
            gated.wait_for("first")
            second = calls.begin("limited", ONE, request_id="second")
            direct = calls.begin("gated", {"INPUT0": ONE["X"]}, request_id="direct")
            gated.wait_for("direct")
            assert gated.began() == ["first", "direct"], "its step has a second instance, but the ensemble waits"
        finally:
            gated.open()
        assert [call.result(PATIENCE_S).id for call in (first, second, direct)] == ["first", "second", "direct"]
        assert gated.began()[-1] == "second"
    gated.shut()


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "_"))
def test_a_wrong_pipeline_is_refused_with_the_reason(client: TritonClient, reasons: dict[str, str], case: str) -> None:
    name = f"wrong_{list(WRONG).index(case)}"
    code = "NOT_FOUND" if "does not exist" in case else "INVALID_ARG"
    assert re.search(reasons[case], refused(client, code, client.call, "load_model", name))
    assert client.call("is_model_ready", name) is False
