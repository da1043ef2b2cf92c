"""What the fuzz tests share: a server with models of several kinds, JSON and protobuf messages with anything in any field."""

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.support.model_factory import (
    onnx_add_sub,
    onnx_identity,
    onnx_scale,
    onnx_sequence_controls,
    pass_on_ensemble,
    python_decoupled,
    python_optional,
    python_scale,
    tensors_text,
    write_config,
)
from tests.support.pipelines import X, Y, ensemble, step
from tests.support.ragged_model import ragged
from tests.support.serving_process import ServerProcess, wait_until

# The models that requests are made for; a request may name another one, or none that there is.
SERVED = [
    *("add_sub", "words", "plain", "cached", "python", "sequence", "both", "lazy"),
    *("counted", "oldest", "named", "decoupled", "decoupled_both", "prioritised", "ordered", "ragged", "optional"),
    *("variable", "scalar", "reshaped", "pipeline", "summed"),
]
MODELS = [*SERVED, "", "nope", "a/../b", "é", "x" * 300]
KEPT = "kept"  # the model that no request of a fuzz test names, so that it always serves
NUMBERS = [0, -1, 1, 2, 3, 7, 8, 9, 127, 255, 256, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]
WORDS = [
    *(
        "INPUT0",
        "INPUT1",
        "OUTPUT0",
        "FP32",
        "INT64",
        "BYTES",
        "BF16",
        "BOOL",
        "FP8",
        "",
        "1",
        "-1",
        "true",
        "\0",
        "é",
        "../x",
    ),
    *("{", "null", "a" * 2000, "sequence_id", "binary_data_size", "classification", "shared_memory_region"),
]
PARAMETERS = [
    *("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data", "binary_data_size"),
    *(
        "binary_data_output",
        "classification",
        "shared_memory_region",
        "shared_memory_byte_size",
        "shared_memory_offset",
    ),
    *(
        "config",
        "file:1/model.onnx",
        "unload_dependents",
        "slipway_timing",
        "triton_enable_empty_final_response",
        "other",
    ),
]


def write_models(repository: Path) -> None:
    onnx_add_sub(repository, "add_sub", extra="dynamic_batching { }")
    onnx_add_sub(repository, KEPT)
    onnx_identity(repository, "words", "BYTES")
    onnx_identity(repository, "plain", max_batch_size=0)
    onnx_scale(repository, "cached", extra="response_cache { enable: true }")
    python_scale(repository, "python")
    declared = '"{\\"prompt_input\\": \\"INPUT0\\", \\"output\\": \\"OUTPUT0\\"}"'
    text = f'parameters {{ key: "slipway.text_generation" value {{ string_value: {declared} }} }}'
    onnx_identity(repository, "writer", "BYTES", [1], extra=text)
    onnx_scale(repository, "sequence", extra="sequence_batching { max_sequence_idle_microseconds: 500000 }")
    value = '"{\\"mode\\": \\"on_demand\\", \\"idle_seconds\\": 0.1}"'
    onnx_scale(repository, "lazy", extra=f'parameters {{ key: "slipway.residency" value {{ string_value: {value} }} }}')
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    maps = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
    step = f'ensemble_scheduling {{ step [ {{ model_name: "cached" model_version: -1 {maps} }} ] }}'
    write_config(repository / "both", f'name: "both" platform: "ensemble" max_batch_size: 8 {tensors} {step}')
    (repository / "both" / "1").mkdir()
    write_scheduled_models(repository)
    write_shaped_models(repository)


def write_scheduled_models(repository: Path) -> None:
    """Sequences with every control, priorities, decoupled answers, and ensembles of them."""
    idle = "max_sequence_idle_microseconds: 300000"
    onnx_sequence_controls(repository, "counted", extra=idle)
    onnx_sequence_controls(repository, "oldest", "oldest { max_candidate_sequences: 4 }", "INT32", extra=idle)
    onnx_sequence_controls(repository, "named", "direct { max_queue_delay_microseconds: 500 }", "UINT64", 1, idle)
    policies = "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 100000 max_queue_size: 5"
    policies += " allow_timeout_override: true } priority_queue_policy { key: 3 value { timeout_action: DELAY"
    policies += " default_timeout_microseconds: 1000 allow_timeout_override: true } }"
    levels = f"dynamic_batching {{ priority_levels: 3 default_priority_level: 2 {policies} }}"
    onnx_scale(repository, "prioritised", extra=levels)
    instances = "instance_group { count: 2 kind: KIND_CPU }"
    python_scale(repository, "ordered", extra=f"dynamic_batching {{ preserve_ordering: true }} {instances}")
    python_decoupled(repository, "decoupled")
    pass_on_ensemble(repository, "decoupled_both", "decoupled", 0)
    doubled = step("cached", {"INPUT0": "m"}, {"OUTPUT0": "OUTPUT0"}) + step(
        "python", {"INPUT0": "X"}, {"OUTPUT0": "m"}
    )
    ensemble(repository, doubled, "pipeline", outputs=Y.replace("Y", "OUTPUT0", 1))
    tensors = {"inputs": X.replace("X", "INPUT0", 1), "outputs": Y.replace("Y", "OUTPUT0", 1)}
    ensemble(
        repository, step("counted", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}), "summed", **tensors, max_batch_size=4
    )


def write_shaped_models(repository: Path) -> None:
    """Reshapes, dims that are free, unequal shapes in one batch, inputs that may stay out."""
    ragged(repository, "BATCH_ACCUMULATED_ELEMENT_COUNT")
    python_optional(repository, "optional", extra="dynamic_batching { }")
    onnx_identity(repository, "variable", dims=[-1, -1], extra="dynamic_batching { }")
    for name, dims, configured in (("scalar", [], "[1] reshape { shape: [ ] }"), ("reshaped", [-1, 1, -1], "")):
        configured = configured or "[-1, -1] reshape { shape: [-1, 1, -1] }"
        onnx_identity(repository, name, dims=dims)
        parts = [
            f'{kind} {{ name: "{tensor}" data_type: TYPE_FP32 dims: {configured} }}'
            for kind, tensor in (("input", "INPUT0"), ("output", "OUTPUT0"))
        ]
        batching = "max_batch_size: 8 dynamic_batching { }"
        write_config(repository / name, f'backend: "onnxruntime" {batching} {" ".join(parts)}')


def fuzzed_server(repository: Path) -> ServerProcess:
    write_models(repository)
    return ServerProcess(
        repository,
        "--model-control-mode=explicit",
        "--load-model=*",
        "--cache-config=local,size=1000000",
        "--allow-client-shm=true",
        f"--http-max-input-size={4 << 20}",
        "--log-info=false",
    )


# What a run of a few thousand requests may leave: connections of the clients, threads' heaps, children that wait.
MORE_DESCRIPTORS = 60
MORE_MEMORY = 300 << 20


@contextmanager
def fuzzed(repository: Path) -> Iterator[ServerProcess]:
    """The server for the tests of a file; at the end it has logged no traceback, and has not grown."""
    with fuzzed_server(repository) as server, sound(server):
        yield server


@contextmanager
def sound(server: ServerProcess) -> Iterator[None]:
    """Check at the end that this server lives, has logged no traceback, and has not grown."""
    descriptors, memory = server.descriptors(), server.memory()
    yield
    assert server.process is not None
    assert server.process.poll() is None, server.log[-4000:]
    raised = re.search(r"^\s*Traceback", server.log, re.MULTILINE)  # one that a model printed follows its name
    assert raised is None, server.log[max(raised.start() - 500, 0) :][:4000]
    wait_until(lambda: server.descriptors() < descriptors + MORE_DESCRIPTORS, what="the end of what clients left open")
    assert server.memory() < memory + MORE_MEMORY


numbers = st.sampled_from(NUMBERS) | st.integers(-10, 300)
words = st.sampled_from(WORDS + PARAMETERS) | st.text(max_size=20)
scalars = st.none() | st.booleans() | numbers | st.floats() | words
values: Any = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=12
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every part of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inner for place in places(part, (*at, key)))]


@st.composite
def mutated(draw: st.DrawFn, whole: Any) -> Any:
    """A JSON value with one to three parts replaced, removed, or given something beside them."""
    changed = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(changed)))
        if not place:
            return draw(values)
        parent = changed
        for key in place[:-1]:
            parent = parent[key]
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "replace":
            parent[place[-1]] = draw(values)
        elif action == "remove":
            del parent[place[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(PARAMETERS))] = draw(values)
        else:
            parent.append(draw(values))
        if not isinstance(changed, dict | list):
            break
    return changed


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], depth: int = 3) -> Message:
    """A message with anything in any of its fields."""
    message = kind()
    _fill(draw, message, depth)
    return message


def _fill(draw: st.DrawFn, message: Any, depth: int) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if draw(st.booleans()):
            _fill_field(draw, message, field, depth)


def _fill_field(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    part = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        value = entry.fields_by_name["value"]
        for key in draw(st.lists(st.sampled_from(PARAMETERS), max_size=2)):
            if value.message_type is None:
                part[key] = draw(_scalar(value))
            elif depth:
                _fill(draw, part[key], depth - 1)
    elif entry is not None:
        if depth and field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                _fill(draw, part.add(), depth - 1)
        elif depth:
            part.SetInParent()
            _fill(draw, part, depth - 1)
    elif field.is_repeated:
        part.extend(draw(st.lists(_scalar(field), max_size=5)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return st.binary(max_size=40)
        named = MODELS if field.name in ("name", "model_name") else WORDS
        return st.sampled_from(named).map(lambda text: text[:300]) | st.text(max_size=10)
    if kind == field.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return st.floats(width=32)
    if kind == field.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    signed = kind not in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([n for n in NUMBERS if low <= n <= high])
