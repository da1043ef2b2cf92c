"""Warm-up requests from `model_warmup`, which run on every instance before its model is ready.

Source: ModelWarmup in model_config.proto. Input files are in <model>/warmup/.
"""

import logging
import math
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelWarmup

from repository.core.addresses import leads_into
from serving.backends.base.backend import ModelSpec
from serving.core.batch import Batch
from serving.core.datatypes import BY_CONFIG, Datatype, Tensor, deserialize_bytes
from serving.core.errors import invalid
from serving.core.in_flight import InFlightRequest
from serving.core.request import InferenceRequest

log = logging.getLogger(__name__)

MAX_REQUESTS = 100_000
MAX_BYTES = 2 << 30


def warmup_batches(config: ModelConfig, spec: ModelSpec) -> list[Batch]:
    """Return one batch for each warm-up sample and repetition. As in Triton, samples without a batch_size are skipped."""
    folder = spec.version_dir.parent / "warmup"
    batches = []
    for sample in config.model_warmup:
        rows = sample.batch_size
        if rows == 0:
            log.info("model '%s': warm-up sample '%s' is skipped, as its batch_size is 0", config.name, sample.name)
            continue
        _check_complete(sample, config)
        inputs = {name: _tensor(name, one, rows, config, folder) for name, one in sample.inputs.items()}
        for _ in range(max(1, sample.count)):
            requests = [InFlightRequest.unanswered(InferenceRequest(config.name, inputs)) for _ in range(rows)]
            if config.max_batch_size == 0:
                batches.append(Batch(requests[:1], 1))
            else:
                batches.append(Batch(requests, rows))
    return batches


def _check_complete(sample: ModelWarmup, config: ModelConfig) -> None:
    missing = [entry.name for entry in config.input if not entry.optional and entry.name not in sample.inputs]
    if missing:
        raise invalid(f"warm-up sample '{sample.name}' gives no input '{missing[0]}'")
    runs = max(1, sample.count) * sample.batch_size
    if runs > MAX_REQUESTS:
        raise invalid(f"warm-up sample '{sample.name}' asks for {runs} requests, expected at most {MAX_REQUESTS}")


def _tensor(name: str, sample: ModelWarmup.Input, rows: int, config: ModelConfig, folder: Path) -> Tensor:
    """Return the tensor of one request, with a batch dimension of 1 if the model batches."""
    row = BY_CONFIG.get(sample.data_type)
    if row is None or any(dim < 0 for dim in sample.dims):
        raise invalid(f"warm-up input '{name}' needs a data type and dims without -1")
    shape = tuple(sample.dims)
    if math.prod(shape) * max(1, row.itemsize) > MAX_BYTES:
        raise invalid(f"warm-up input '{name}' of shape {list(shape)} is larger than {MAX_BYTES >> 20} MiB")
    source = sample.WhichOneof("input_data_type")
    if source == "input_data_file":
        array = _from_file(name, folder / sample.input_data_file, folder, row, shape)
    elif source == "random_data":
        array = _random(row, shape)
    else:
        array = np.full(shape, b"", dtype=np.object_) if row.name == "BYTES" else np.zeros(shape, row.dtype)
    return array[np.newaxis] if config.max_batch_size else array


def _random(row: Datatype, shape: tuple[int, ...]) -> Tensor:
    random = np.random.default_rng(0)
    if row.name == "BYTES":
        return np.full(shape, b"random", dtype=np.object_)
    if row.dtype.kind in "iu":
        limits = np.iinfo(row.dtype)
        return random.integers(limits.min, limits.max, shape, row.dtype, endpoint=True)
    if row.dtype.kind == "b":
        return random.integers(0, 2, shape).astype(np.bool_)
    return random.random(shape).astype(row.dtype)


def _from_file(name: str, path: Path, folder: Path, row: Datatype, shape: tuple[int, ...]) -> Tensor:
    if not leads_into(path, folder) or not path.is_file():
        raise invalid(f"warm-up input '{name}' names a data file that is not in the model's warmup folder")
    data = path.read_bytes()
    count = int(np.prod(shape, dtype=np.int64))
    if row.name == "BYTES":
        return deserialize_bytes(data, count).reshape(shape)
    if len(data) != count * row.itemsize:
        raise invalid(
            f"warm-up input '{name}' needs {count * row.itemsize} bytes for shape {list(shape)}, its file has {len(data)}"
        )
    return np.frombuffer(data, row.dtype).reshape(shape)
