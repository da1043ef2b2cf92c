"""The models that are asked: each answers with numbers from which one sees whether the answer is right."""

import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.model_factory import (
    onnx_scale,
    onnx_sequence_sum,
    python_decoupled,
    python_scale,
    tensors_text,
    write_config,
)

SCALE, PYTHON, SEQUENCE, DECOUPLED, ENSEMBLE, SPARE = (
    *("soak_scale", "soak_python", "soak_sequence", "soak_decoupled", "soak_ensemble", "soak_spare"),
)
NAMES = (SCALE, PYTHON, SEQUENCE, DECOUPLED, ENSEMBLE, SPARE)
# Requests of each to a connection that may choose; the sequences and the decoupled model need one that keeps them.
WEIGHTS = {SCALE: 55, PYTHON: 25, ENSEMBLE: 20}
NEED_PYTHON = (PYTHON, DECOUPLED, ENSEMBLE)
ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
BATCHING = f"dynamic_batching {{ }} instance_group {{ count: 1 kind: KIND_CPU }} {ONE_THREAD}"
SEQUENCE_LENGTH = 10
RESPONSES = 3  # of one request to the decoupled model


def write_models(repository: Path) -> None:
    onnx_scale(repository, SCALE, 2.0, extra=BATCHING)
    onnx_scale(repository, SPARE, 2.0, extra=BATCHING)
    python_scale(repository, PYTHON, 2.0, extra="dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }")
    # By default a second without a request ends a sequence, and this machine may be busy for longer than that.
    config = onnx_sequence_sum(repository, SEQUENCE, max_batch_size=64, extra=ONE_THREAD) / "config.pbtxt"
    config.write_text(config.read_text().replace("direct { }", "direct { } max_sequence_idle_microseconds: 60000000"))
    python_decoupled(repository, DECOUPLED)
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    first = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" }'
    second = 'input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 {maps} }} '
        for name, maps in ((SCALE, first), (PYTHON, second))
    )
    text = f'name: "{ENSEMBLE}" platform: "ensemble" max_batch_size: 8 {tensors} ensemble_scheduling {{ {steps} }}'
    write_config(repository / ENSEMBLE, text)
    (repository / ENSEMBLE / "1").mkdir()


def version_files(model: str, factor: float, folder: Path) -> dict[str, bytes]:
    """The files of one more version of a scaling model, as they are uploaded."""
    write: dict[str, Callable[..., Path]] = {SCALE: onnx_scale, PYTHON: python_scale}
    version = write[model](folder, model, factor) / "1"
    return {path.name: path.read_bytes() for path in version.iterdir() if path.is_file()}


def right(model: str, value: float, answer: float, factors: set[float]) -> bool:
    """Return whether a scaling model, or the ensemble of both, may have answered so."""
    if model == ENSEMBLE:
        return any(answer == value * first * second for first in factors for second in factors)
    return answer / value in factors


def number(raw: bytes) -> float:
    """The one FP32 of an answer."""
    return float(struct.unpack("<f", raw[-4:])[0])
