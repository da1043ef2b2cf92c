"""Random configurations that validation takes: the server serves them or refuses with a sentence, and never hangs."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

from repository.config import validation
from tests.e2e.fuzzing.inputs import sound
from tests.serving.frontends.raw_http import infer_body, tensor
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until

KEPT = "kept"
NAME = "made"
# What stands in the folder: name -> (how it is written, its inputs as (name, rank without the batch))
FILES: dict[str, Callable[[Path, str], Any]] = {
    "identity": lambda repository, name: model_factory.onnx_identity(repository, name),
    "plain": lambda repository, name: model_factory.onnx_identity(repository, name, max_batch_size=0),
    "two": lambda repository, name: model_factory.onnx_identity(repository, name, dims=[-1, -1]),
    "scalar": lambda repository, name: model_factory.onnx_identity(repository, name, dims=[]),
    "add_sub": lambda repository, name: model_factory.onnx_add_sub(repository, name),
    "controls": lambda repository, name: model_factory.onnx_sequence_controls(repository, name),
    "python": lambda repository, name: model_factory.python_scale(repository, name),
    "decoupled": lambda repository, name: model_factory.python_decoupled(repository, name),
}
COUNTS = st.sampled_from([0, 1, 2, 3, 4, 8, 9])
DELAYS = st.sampled_from([0, 1, 1000, 50_000])
HUGE = st.sampled_from([0, 1, 2, 7, 2**31 - 1, 2**32 - 1])
DIMS = st.lists(st.sampled_from([-1, 1, 2, 4]), max_size=3)
NAMES = st.sampled_from(["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1", "START", "CORRID", "STATE", "OTHER"])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("fuzz") / "models"
    model_factory.onnx_scale(repository, KEPT)
    for name, write in FILES.items():
        write(repository.parent / "originals", name)
        write(repository, name)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    flags = ("--model-control-mode=explicit", f"--load-model={KEPT}", "--cache-config=local,size=1000000")
    with ServerProcess(repository, *flags, "--log-info=false") as server, sound(server):
        yield server


# -- configurations --------------------------------------------------------------------------------------------------
@st.composite
def queue_policies(draw: st.DrawFn) -> mc.ModelQueuePolicy:
    return mc.ModelQueuePolicy(
        timeout_action=draw(st.sampled_from([0, 1])),
        default_timeout_microseconds=draw(DELAYS),
        allow_timeout_override=draw(st.booleans()),
        max_queue_size=draw(COUNTS),
    )


@st.composite
def dynamic_batchings(draw: st.DrawFn) -> mc.ModelDynamicBatching:
    batching = mc.ModelDynamicBatching(
        preferred_batch_size=draw(st.lists(COUNTS, max_size=2)),
        max_queue_delay_microseconds=draw(DELAYS),
        preserve_ordering=draw(st.booleans()),
        priority_levels=draw(COUNTS | HUGE | st.just(2**64 - 1)),
        default_priority_level=draw(COUNTS),
        default_queue_policy=draw(queue_policies()),
    )
    for level in draw(st.lists(COUNTS, max_size=2)):
        batching.priority_queue_policy[level].CopyFrom(draw(queue_policies()))
    return batching


@st.composite
def sequence_batchings(draw: st.DrawFn) -> mc.ModelSequenceBatching:
    batching = mc.ModelSequenceBatching(max_sequence_idle_microseconds=draw(DELAYS))
    if draw(st.booleans()):
        batching.direct.max_queue_delay_microseconds = draw(DELAYS)
        batching.direct.minimum_slot_utilization = draw(st.sampled_from([0.0, 0.5, 1.0]))
    elif draw(st.booleans()):
        batching.oldest.max_candidate_sequences = draw(COUNTS | HUGE.filter(lambda number: number < 2**31))
        batching.oldest.preferred_batch_size.extend(draw(st.lists(COUNTS, max_size=2)))
        batching.oldest.max_queue_delay_microseconds = draw(DELAYS)
    for kind in draw(st.lists(st.sampled_from(["START", "END", "READY", "CORRID"]), unique=True)):
        control = batching.control_input.add(name=draw(st.just(kind) | NAMES)).control.add()
        control.kind = getattr(mc.ModelSequenceBatching.Control, f"CONTROL_SEQUENCE_{kind}")
        if kind == "CORRID":
            control.data_type = draw(st.sampled_from([mc.TYPE_INT64, mc.TYPE_INT32, mc.TYPE_UINT64, mc.TYPE_STRING]))
        else:
            control.fp32_false_true.extend([0, 1])
    if draw(st.booleans()):
        state = batching.state.add(input_name="STATE", output_name="NEW_STATE", data_type=mc.TYPE_FP32)
        state.dims.extend(draw(DIMS | st.just([1])))
        if draw(st.booleans()):
            state.initial_state.add(name="begin", data_type=mc.TYPE_FP32, dims=draw(DIMS), zero_data=True)
    return batching


@st.composite
def reshaped(draw: st.DrawFn, part: Any) -> None:
    """Give a tensor other dims, a reshape, or another datatype."""
    if draw(st.integers(0, 3)) == 0:
        del part.dims[:]
        part.dims.extend(draw(DIMS))
    if draw(st.integers(0, 3)) == 0:
        part.reshape.shape.extend(draw(DIMS))
        part.reshape.SetInParent()
    if draw(st.integers(0, 9)) == 0:
        part.data_type = draw(st.sampled_from([mc.TYPE_INT64, mc.TYPE_STRING, mc.TYPE_FP16, mc.TYPE_BOOL]))


@st.composite
def configurations(draw: st.DrawFn, config: mc.ModelConfig) -> mc.ModelConfig:
    """A configuration with some of its parts replaced."""
    if draw(st.booleans()):
        config.max_batch_size = draw(COUNTS | HUGE.filter(lambda number: number < 2**31))
    for part in (*config.input, *config.output):
        draw(reshaped(part))
    if config.input and draw(st.integers(0, 2)) == 0:
        config.input[-1].optional = draw(st.booleans())
        config.input[0].allow_ragged_batch = draw(st.booleans())
    if draw(st.booleans()):
        if draw(st.booleans()):
            config.dynamic_batching.CopyFrom(draw(dynamic_batchings()))
        else:
            config.sequence_batching.CopyFrom(draw(sequence_batchings()))
    if draw(st.booleans()):
        group = config.instance_group.add(count=draw(st.integers(0, 3)), kind=draw(st.sampled_from([0, 2, 3])))
        if draw(st.booleans()):
            resource = group.rate_limiter.resources.add(name="R", count=draw(st.integers(0, 2)))
            setattr(resource, "global", draw(st.booleans()))
            group.rate_limiter.priority = draw(COUNTS)
    config.response_cache.enable = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        config.model_transaction_policy.decoupled = draw(st.booleans())
    if draw(st.integers(0, 2)) == 0:
        config.version_policy.CopyFrom(
            draw(
                st.sampled_from(
                    [
                        mc.ModelVersionPolicy(all={}),
                        mc.ModelVersionPolicy(latest={"num_versions": 2}),
                        mc.ModelVersionPolicy(specific={"versions": [1]}),
                        mc.ModelVersionPolicy(specific={"versions": [2]}),
                    ]
                )
            )
        )
    if config.input and draw(st.integers(0, 3)) == 0:
        sample = config.model_warmup.add(name="w", batch_size=draw(COUNTS), count=draw(st.integers(0, 2)))
        for part in config.input:
            given_input = sample.inputs[part.name]
            given_input.data_type, given_input.zero_data = part.data_type, True
            given_input.dims.extend(max(dim, 1) for dim in part.dims)
    if draw(st.integers(0, 3)) == 0:
        made = config.batch_input.add(kind=draw(st.integers(0, 6)), data_type=draw(st.sampled_from([8, 11])))
        made.target_name.append(draw(NAMES))
        made.source_input.append(draw(NAMES))
    if draw(st.integers(0, 3)) == 0:
        made_output = config.batch_output.add()
        made_output.target_name.append(draw(NAMES))
        made_output.source_input.append(draw(NAMES))
    if draw(st.integers(0, 3)) == 0:
        key, value = draw(
            st.sampled_from(
                [
                    ("slipway.residency", '{"mode": "on_demand", "idle_seconds": 0.1}'),
                    ("slipway.isolation", '"process"'),
                    ("intra_op_thread_count", "1"),
                    ("enable_mem_arena", "0"),
                    ("execution_mode", "1"),
                ]
            )
        )
        config.parameters[key].string_value = value
    return config


# What may be a step of an ensemble: its inputs and outputs.
STEPS = {
    "identity": (["INPUT0"], ["OUTPUT0"]),
    "scalar": (["INPUT0"], ["OUTPUT0"]),
    "two": (["INPUT0"], ["OUTPUT0"]),
    "add_sub": (["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]),
    "controls": (["INPUT0"], ["OUTPUT0", "ID"]),
    "python": (["INPUT0"], ["OUTPUT0"]),
    "decoupled": (["INPUT0"], ["OUTPUT0"]),
    "plain": (["INPUT0"], ["OUTPUT0"]),
}


@st.composite
def ensembles(draw: st.DrawFn) -> mc.ModelConfig:
    """Steps that read what earlier ones, or the request, give; what nobody reads is an output."""
    config = mc.ModelConfig(name=NAME, platform="ensemble", max_batch_size=draw(st.sampled_from([0, 1, 4, 8])))
    dims = draw(st.sampled_from([[1], [-1], [4], [-1, -1]]))
    config.input.add(name="X", data_type=mc.TYPE_FP32, dims=dims)
    known, read = ["X"], set()
    for index, name in enumerate(draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3))):
        step = config.ensemble_scheduling.step.add(model_name=name, model_version=draw(st.sampled_from([-1, -1, 1, 2])))
        inputs, outputs = STEPS[name]
        for tensor_name in inputs:
            step.input_map[tensor_name] = draw(st.sampled_from(known[-2:]))
            read.add(step.input_map[tensor_name])
        for tensor_name in outputs[: draw(st.integers(1, len(outputs)))]:
            step.output_map[tensor_name] = f"{tensor_name}_{index}"
            known.append(step.output_map[tensor_name])
    for tensor_name in known:
        if tensor_name not in read or (tensor_name != "X" and draw(st.booleans())):
            kind = mc.TYPE_INT64 if tensor_name.startswith("ID") else mc.TYPE_FP32
            config.output.add(name=tensor_name, data_type=kind, dims=dims)
    config.response_cache.enable = draw(st.booleans())
    return config


# -- the tests -------------------------------------------------------------------------------------------------------
@settings(max_examples=50)
@given(data=st.data(), kind=st.sampled_from(sorted(FILES)))
def test_a_configuration_that_validation_takes_is_loaded_and_served_or_refused_with_a_sentence(
    repository: Path, server: ServerProcess, data: st.DataObject, kind: str
) -> None:
    written = repository.parent / "originals" / kind / "config.pbtxt"
    original = text_format.Parse(written.read_text(), mc.ModelConfig())
    config = data.draw(configurations(original))
    config.name = NAME
    assume(not validation.validate(config, name=NAME, complete=False))
    put(repository, kind, config)
    load_and_ask(server, config)


@settings(max_examples=60)
@given(config=ensembles())
def test_an_ensemble_that_validation_takes_is_loaded_and_served_or_refused_with_a_sentence(
    repository: Path, server: ServerProcess, config: mc.ModelConfig
) -> None:
    assume(not validation.validate(config, name=NAME, complete=False))
    put(repository, "identity", config)
    load_and_ask(server, config)


def load_and_ask(server: ServerProcess, config: mc.ModelConfig) -> None:
    status, said = server.post(f"/v2/repository/models/{NAME}/load")
    # 500 is for what the model's own code or framework does with it; what the server itself raises is in its log.
    assert status in (200, 400, 404, 503) or "load failed for model" in said["error"], (status, said)
    if status == 200:
        ask(server)
    else:
        assert isinstance(said["error"], str)
        assert "Traceback" not in said["error"]
    assert server.post(f"/v2/repository/models/{NAME}/unload")[0] == 200
    wait_until(lambda: unloaded(server), what=f"the end of this model:\n{text_format.MessageToString(config)}")
    assert server.post(f"/v2/models/{KEPT}/infer", json.loads(infer_body(tensor([1.0]))))[0] == 200


def put(repository: Path, kind: str, config: mc.ModelConfig) -> None:
    """Make the model's folder what the example says."""
    folder = repository / NAME
    for path in (repository.parent / "originals" / kind / "1").iterdir():
        if path.is_file():
            for old in (folder / "1").glob("model.*"):
                old.unlink()
            (folder / "1").mkdir(parents=True, exist_ok=True)
            (folder / "1" / path.name).write_bytes(path.read_bytes())
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))


def ask(server: ServerProcess) -> None:
    """Requests of the shapes that the configuration has, one by one and many at a time: each is answered, well or with a
    sentence."""
    status, config = server.get(f"/v2/models/{NAME}/config")
    if status != 200:
        return  # it sleeps, or its version policy serves no version
    for number in range(4):
        ask_once(server, config, 5, number == 0, number == 3)
    with ThreadPoolExecutor(8) as executor:
        calls = [
            executor.submit(
                ask_once, server, config, number % 3 + 1, number < 3, number % 2 == 0, number % 5, number % 4
            )
            for number in range(16)
        ]
        for call in calls:
            call.result()


def ask_once(
    server: ServerProcess, config: Any, sequence: int, start: bool, end: bool, priority: int = 0, timeout_ms: int = 0
) -> None:
    batch = [1] if config.get("max_batch_size", 0) else []
    parameters: dict[str, Any] = {"priority": priority, "timeout": timeout_ms * 1000}
    if "sequence_batching" in config:
        parameters |= {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    tensors = [made_tensor(row, batch) for row in config.get("input", [])]
    status, said = server.post(f"/v2/models/{NAME}/infer", {"inputs": tensors, "parameters": parameters})
    assert status in (200, 400, 404, 499, 501, 503) or (status == 500 and isinstance(said["error"], str)), (
        status,
        said,
    )


def made_tensor(row: Any, batch: list[int]) -> Any:
    shape = batch + [2 if int(dim) < 0 else int(dim) for dim in row.get("dims", [])]
    count = 1
    for dim in shape:
        count *= dim
    datatype = row["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
    value: Any = {"BYTES": "a", "BOOL": True}.get(datatype, 1)
    return {"name": row["name"], "datatype": datatype, "shape": shape, "data": [value] * count}


def unloaded(server: ServerProcess) -> bool:
    rows = server.post("/v2/repository/index")[1]
    return all(row.get("state", "UNAVAILABLE") == "UNAVAILABLE" for row in rows if row["name"] == NAME)
