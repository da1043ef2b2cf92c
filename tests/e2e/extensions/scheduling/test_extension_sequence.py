"""The sequence extension with the stock clients: states, controls, ids of both kinds, idle and iterative sequences."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused, stream_of
from tests.support.model_factory import (
    onnx_bytes,
    onnx_sequence_sum,
    python_model,
    tensors_text,
    write_config,
    write_onnx,
)
from tests.support.serving_process import ServerProcess

Sum = Callable[..., float]
DIRECT, OLDEST = "direct { }", "oldest { max_candidate_sequences: 4 }"
PATIENT = "max_sequence_idle_microseconds: 600000000"
# One control of each kind, and one of each form in which its values can be given.
CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [2, 3] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: %s } }
"""
INITIAL = """state { input_name: "STATE" output_name: "NEW_STATE" data_type: TYPE_FP32 dims: [1]
    initial_state { name: "ten" data_type: TYPE_FP32 dims: [1] data_file: "ten" } }"""
# Asks for a request again until it has seen it as often as its input says.
ITERATIVE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.seen = {}

        def execute(self, requests):
            responses = []
            for request in requests:
                name, wanted = request.correlation_id(), request.inputs()[0].as_numpy()[0, 0]
                seen = self.seen[name] = self.seen.get(name, 0) + 1
                if seen < wanted:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    responses.append(None)
                else:
                    out = pb_utils.Tensor("OUTPUT", np.array([[self.seen.pop(name)]], np.float32))
                    responses.append(pb_utils.InferenceResponse([out]))
            return responses
"""


def model_that_shows_controls(repository: Path, name: str, datatype: str) -> None:
    """IN and what the scheduler added come back as outputs."""
    inputs = [("IN", "FP32"), ("START", "FP32"), ("END", "INT32"), ("READY", "BOOL"), ("CORRID", datatype)]
    nodes = [helper.make_node("Identity", [each], [f"{each}_SEEN"]) for each, _ in inputs]
    outputs = [(f"{each}_SEEN", kind) for each, kind in inputs]
    write_onnx(
        repository, name, onnx_bytes(nodes, *([(*each, ["batch", 1]) for each in io] for io in (inputs, outputs)))
    )
    controls = CONTROLS % ("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")
    declared = tensors_text("input", [("IN", "FP32", [1])]) + tensors_text("output", [(*each, [1]) for each in outputs])
    text = f'backend: "onnxruntime" max_batch_size: 2 {declared} sequence_batching {{ {DIRECT} {PATIENT} {controls} }}'
    write_config(repository / name, text)


def model_that_sums(repository: Path, name: str, strategy: str, rows: int = 4, settings: str = PATIENT) -> None:
    folder = onnx_sequence_sum(repository, name, max_batch_size=rows, extra="instance_group { count: 1 }")
    text = (folder / "config.pbtxt").read_text().replace("direct { }", f"{strategy} {settings}")
    (folder / "config.pbtxt").write_text(text)


def model_that_begins_at_ten(repository: Path) -> None:
    folder = onnx_sequence_sum(repository, "from_ten")
    text = (
        (folder / "config.pbtxt")
        .read_text()
        .replace("true: [0, 1]", "true: [0, 0]")
        .replace(DIRECT, f"{DIRECT} {PATIENT}")
    )
    begin = text.index("state {")
    end = text.index("}", begin) + 1
    (folder / "config.pbtxt").write_text(text[:begin] + INITIAL + text[end:])
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "ten").write_bytes(np.float32(10).tobytes())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    model_that_sums(repository, "direct", DIRECT)
    model_that_sums(repository, "oldest", OLDEST)
    model_that_sums(repository, "one_slot", DIRECT, 1)
    model_that_sums(repository, "idle", DIRECT, 1, "max_sequence_idle_microseconds: 20000")
    model_that_begins_at_ten(repository)
    model_that_shows_controls(repository, "numbered", "UINT64")
    model_that_shows_controls(repository, "named", "BYTES")
    tensors = tensors_text("input", [("INPUT", "FP32", [1])]) + tensors_text("output", [("OUTPUT", "FP32", [1])])
    config = f'backend: "python" max_batch_size: 4 {tensors} sequence_batching {{ iterative_sequence: true {PATIENT} }}'
    python_model(repository, "iterative", ITERATIVE, config)
    with ServerProcess(repository) as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(params=[*PROTOCOLS, "stream"])
def summed(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Sum]:
    """One step of a sequence in each way that the clients have; gives the sum so far."""
    if request.param == "stream":
        with stream_of(server) as stream:

            def by_stream(model: str, value: float, sequence: int | str, flags: str = "") -> float:
                stream.send(model, one(value), **step(sequence, flags))
                return float(stream.next().as_numpy("OUTPUT")[0, 0])

            yield by_stream
    else:
        with client_of(server, request.param) as client:
            yield lambda model, value, sequence, flags="": total(client, model, value, sequence, flags)


def one(value: float) -> dict[str, Any]:
    return {"INPUT": np.full((1, 1), value, np.float32)}


def step(sequence: int | str, flags: str) -> dict[str, Any]:
    return {"sequence_id": sequence, "sequence_start": "s" in flags, "sequence_end": "e" in flags}


def total(client: TritonClient, model: str, value: float, sequence: int | str, flags: str = "") -> float:
    return float(client.infer(model, one(value), **step(sequence, flags)).outputs["OUTPUT"][0, 0])


def test_the_server_says_that_it_has_sequences_with_ids_of_both_kinds(client: TritonClient) -> None:
    assert {"sequence", "sequence(string_id)"} <= set(client.described("get_server_metadata")["extensions"])


@pytest.mark.parametrize("model", ["direct", "oldest"])
@pytest.mark.parametrize("ids", [(1, 2, 2**63 - 1), ("a", "b", "5a1e\u00fc")], ids=["numbers", "strings"])
def test_each_sequence_has_a_state_of_its_own(summed: Sum, model: str, ids: tuple[int | str, ...]) -> None:
    for round_number, flags in enumerate(["s", "", "e"], 1):
        sums = [summed(model, value, each, flags) for value, each in zip((1, 10, 100), ids, strict=True)]
        assert sums == [round_number, 10 * round_number, 100 * round_number]


def test_the_state_of_a_new_sequence_comes_from_the_configuration(summed: Sum) -> None:
    assert [summed("from_ten", 1, 3, "s"), summed("from_ten", 1, 3, "e")] == [11, 12]


def test_a_stream_may_run_ahead_and_its_sequences_stay_in_order(server: ServerProcess) -> None:
    with stream_of(server) as stream:
        for number in range(12):
            flags = ("s" if number < 3 else "") + ("e" if number >= 9 else "")
            stream.send("oldest", one(1), request_id=str(number), **step(number % 3 + 1, flags))
        results = [stream.next() for _ in range(12)]
        assert [result.get_response().id for result in results] == [str(number) for number in range(12)]
        assert [result.as_numpy("OUTPUT").item() for result in results] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize(("model", "sequence"), [("numbered", 42), ("named", "e333c95a-07fc")])
def test_the_model_sees_a_control_of_each_kind(client: TritonClient, model: str, sequence: int | str) -> None:
    inputs = {"IN": np.ones((1, 1), np.float32)}
    for flags, expected in (("s", [1, 2]), ("", [0, 2]), ("e", [0, 3])):
        seen = client.infer(model, inputs, **step(sequence, flags)).outputs
        assert [seen["START_SEEN"].item(), seen["END_SEEN"].item()] == expected
        assert seen["READY_SEEN"].item() is True
        found = seen["CORRID_SEEN"].item()
        assert (found.decode() if isinstance(found, bytes) else found) == sequence


def test_a_sequence_that_is_idle_gives_up_its_slot_and_must_start_again(client: TritonClient) -> None:
    assert total(client, "idle", 1, 1, "s") == 1
    assert total(client, "idle", 5, 2, "s") == 5, "the only slot was given on"
    message = refused(client, "INVALID_ARG", client.infer, "idle", one(1), **step(1, ""))
    assert "sequence 1 to model 'idle' must specify the START flag" in message


def test_a_sequence_without_a_slot_waits_as_long_as_its_timeout(client: TritonClient) -> None:
    assert total(client, "one_slot", 1, 1, "s") == 1
    message = refused(client, "UNAVAILABLE", client.infer, "one_slot", one(1), timeout=1000, **step(2, "s"))
    assert "timeout of the corresponding sequence" in message
    assert total(client, "one_slot", 1, 1, "e") == 2
    assert total(client, "one_slot", 7, 2, "se") == 7


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        (one(1), {}, "must specify a non-zero or non-empty correlation ID"),
        (one(1), step(9, ""), "sequence 9 to model 'direct' must specify the START flag"),
        ({"INPUT": np.ones((2, 1), np.float32)}, step(9, "s"), "must specify batch-size 1"),
    ],
    ids=["no id", "no start", "a batch"],
)
def test_what_is_wrong_with_a_request_is_said(
    client: TritonClient, inputs: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    assert words in refused(client, "INVALID_ARG", client.infer, "direct", inputs, **options)


def test_an_iterative_model_is_asked_until_it_answers(client: TritonClient) -> None:
    found = client.many("iterative", [one(times) for times in (1, 5, 3)])
    assert [answer.outputs["OUTPUT"].item() for answer in found] == [1, 5, 3]
