"""The V2 inference request: JSON (Triton's inference header), followed by the binary data of tensors.

decode(body, binary, ...) -> (InferenceRequest, InferHeader)      tensors are views of `binary` where possible

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_binary_data.md.
Memory for a tensor is allocated only after its data has come, because a client may claim any shape.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.datatypes import BY_CONFIG, deserialize_bytes
from serving.core.errors import ServingError, invalid
from serving.core.request import NO_TARGETS, InferenceRequest
from serving.extensions.shared_memory import SharedMemory
from serving.extensions.tensor_parameters import all_on_device, find_targets, read_input
from serving.frontends.http1.message import Chunk
from serving.frontends.rest.infer_header import InferHeader, InputHeader, check_header, read_outline
from serving.frontends.rest.json_input import SMALL_TEXT, NotFlatError, array_from_json, flattened, load_json, numbers

Array = NDArray[Any]
_T, _F = b"tf"


def decode(
    body: Chunk, binary: Chunk, model: str, version: str, memory: SharedMemory
) -> tuple[InferenceRequest, InferHeader]:
    """Return the request and its header, which determines how the response is encoded.

    The server checks later whether the inputs fit the model. body: the JSON. binary: the data of the inputs with a
    binary_data_size, one after the other. memory: the registered shared memory regions.

    Raises INVALID_ARG for a malformed request, and NOT_FOUND for an unknown shared memory region.
    """
    try:
        header, identifier, texts = read_outline(body)
        arrays = [*map(_from_text, header.given, texts)] if texts else []
    except NotFlatError:
        header, identifier, arrays = read_whole(body)
    return _make_request(header, identifier, arrays, binary, model, version, memory), header


def read_whole(body: Chunk) -> tuple[InferHeader, str, list[Array]]:
    """Parse the complete body. Return the header, the request's id, and the tensors of the inputs whose data is in the JSON.
    Raises INVALID_ARG for a malformed request."""
    header, data = check_header(load_json(body))
    return header, header.id, [*map(_from_json, header.given, data)]


def _from_text(spec: InputHeader, text: Chunk) -> Array:
    """Return the tensor whose data is `text`. Raises NotFlatError if `text` is not one complete array."""
    if len(text) > SMALL_TEXT:
        return _from_json(spec, numbers(text, spec.row))
    try:
        values = orjson.loads(text)
    except ValueError:
        raise NotFlatError from None
    # A text with a "t" or "f" may have booleans, which `pack` would accept as numbers. `_T` and `_F` are integers, because `in`
    # finds an integer ten times as fast as a bytes object.
    if spec.pack is not None and _T not in text and _F not in text:
        if values and type(values[0]) is list:
            values = flattened(spec.name, values)
        try:
            return np.ndarray(spec.shape, spec.dtype, spec.pack(*values))
        except (struct.error, OverflowError):
            pass
    return _from_json(spec, values)


def _from_json(spec: InputHeader, values: object) -> Array:
    return array_from_json(spec.name, spec.row, spec.shape, spec.elements, values)


def decode_raw(config: ModelConfig, binary: Chunk, version: str) -> tuple[InferenceRequest, InferHeader]:
    """Decode Triton's raw binary request: the body is the data of the model's only input, or its only BYTES element.

    Source: Triton, docs/protocol/extension_binary_data.md, Raw Binary Request.
    """
    if len(config.input) == 1 and BY_CONFIG[config.input[0].data_type].name == "BYTES":
        binary = len(binary).to_bytes(4, "little") + bytes(binary)
    header = InferHeader(
        [_raw_input(config, len(binary))], binary_size=len(binary), binary_default=True, all_binary=True
    )
    return _make_request(header, "", (), binary, config.name, version), header


def _make_request(
    header: InferHeader,
    identifier: str,
    arrays: Sequence[Array],
    binary: Chunk,
    model: str,
    version: str,
    memory: SharedMemory | None = None,
) -> InferenceRequest:
    """Return the request. arrays: the tensors of the inputs in `header.given`."""
    if len(binary) != header.binary_size:
        raise _wrong_size(header, len(binary))
    inputs: dict[str, Array] = {}
    offset = given = 0
    for spec in header.inputs:
        if spec.binary_size >= 0:
            if spec.plain:
                array: Array = np.ndarray(spec.shape, spec.dtype, binary, offset)
                # Native code of backends may need aligned data.
                inputs[spec.name] = array if array.flags.aligned else array.copy()
            else:
                inputs[spec.name] = _converted(spec, memoryview(binary)[offset : offset + spec.binary_size])
            offset += spec.binary_size
        elif spec.region is None:
            inputs[spec.name] = arrays[given]
            given += 1
        else:
            assert memory is not None
            inputs[spec.name] = read_input(memory, model, spec.name, spec.row, spec.shape, spec.region)
    targets = NO_TARGETS
    if header.rules and memory is not None:
        targets = find_targets(header.rules, memory, [spec.region for spec in header.inputs])
    return InferenceRequest(
        model,
        inputs,
        version,
        identifier,
        header.requested,
        header.parameters,
        header.priority,
        header.timeout_us,
        header.sequence,
        targets,
        all_on_device(targets, header.requested) if targets else False,
    )


def _converted(spec: InputHeader, data: memoryview) -> Array:
    if spec.row.itemsize == 0:
        return deserialize_bytes(data, spec.elements).reshape(spec.shape)
    # Any byte other than 0 means true, but numpy's booleans must be 0 or 1.
    return np.ndarray(spec.shape, np.uint8, data).astype(np.bool_)


def _wrong_size(header: InferHeader, size: int) -> ServingError:
    end = 0
    for spec in header.inputs:
        if spec.binary_size > 0:
            end += spec.binary_size
            if end > size:
                return invalid(f"unexpected size for input '{spec.name}', expecting {end - size} additional bytes")
    return invalid(f"unexpected additional input data: {size - end} bytes after the last binary input")


def _raw_input(config: ModelConfig, size: int) -> InputHeader:
    if len(config.input) != 1:
        raise invalid(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(config.input)} inputs in '{config.name}'"
        )
    tensor = config.input[0]
    row = BY_CONFIG[tensor.data_type]
    dims = [1, *tensor.dims] if config.max_batch_size else list(tensor.dims)
    if row.name == "BYTES":
        if math.prod(dims) != 1 or min(dims, default=1) < 1:
            raise invalid(
                f"For BYTE datatype raw input '{tensor.name}', the model must have input shape [1], it has {dims}"
            )
        return InputHeader(tensor.name, row, tuple(dims), 1, size)
    variable = [index for index, dim in enumerate(dims) if dim < 0]
    known = math.prod(dim for dim in dims if dim > 0)
    if len(variable) > 1 or (variable and size % (known * row.itemsize)):
        many = (
            "there are more than one variable-sized dimension" if len(variable) > 1 else f"{size} bytes do not fill it"
        )
        raise invalid(f"The shape of the raw input '{tensor.name}' can not be deduced because {many}")
    for index in variable:
        dims[index] = size // (known * row.itemsize)
    count = math.prod(dims)
    if count * row.itemsize != size:
        raise invalid(f"input '{tensor.name}' of shape {dims} needs {count * row.itemsize} bytes, got {size}")
    return InputHeader(tensor.name, row, tuple(dims), count, size)
