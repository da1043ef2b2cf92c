"""The models that get the requests, and the check of their answers."""

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
# How often each model is requested on a connection with mixed requests. Sequences and the decoupled model have separate ones.
WEIGHTS = {SCALE: 55, PYTHON: 25, ENSEMBLE: 20}
NEED_PYTHON = (PYTHON, DECOUPLED, ENSEMBLE)
ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
BATCHING = f"dynamic_batching {{ }} instance_group {{ count: 1 kind: KIND_CPU }} {ONE_THREAD}"
SEQUENCE_LENGTH = 10
RESPONSES = 3  # the number of responses of the decoupled model to one request


def write_models(repository: Path) -> None:
    onnx_scale(repository, SCALE, 2.0, extra=BATCHING)
    onnx_scale(repository, SPARE, 2.0, extra=BATCHING)
    python_scale(repository, PYTHON, 2.0, extra="dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }")
    # By default a second without a request ends a sequence, and a busy machine may pause for longer than that.
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
    """Return the files to upload for a new version of a scaling model."""
    write: dict[str, Callable[..., Path]] = {SCALE: onnx_scale, PYTHON: python_scale}
    version = write[model](folder, model, factor) / "1"
    return {path.name: path.read_bytes() for path in version.iterdir() if path.is_file()}


def right(model: str, value: float, answer: float, factors: set[float]) -> bool:
    """Return whether `answer` is a possible answer of a scaling model, or of the ensemble of both."""
    if model == ENSEMBLE:
        return any(answer == value * first * second for first in factors for second in factors)
    return answer / value in factors


def number(raw: bytes) -> float:
    """Return the single FP32 number of an answer."""
    return float(struct.unpack("<f", raw[-4:])[0])
