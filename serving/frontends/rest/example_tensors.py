"""Tensors of examples in JSON, of every datatype: those of golden requests, and of sampled ones.

As V2 JSON has them, {"name", "datatype", "shape", "data"}, and beyond it, so that an example can be kept as it is:

FP16, BF16            numbers, as of the other floats
not finite floats     the texts "NaN", "Infinity" and "-Infinity", which every JSON parser and database takes; or the tokens
"base64" for "data"   the tensor's binary data, in base64: BYTES that are not UTF-8, whatever is large
"""

import base64
import binascii
import json
import math
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.core.datatypes import DATATYPES, Tensor, datatype_of, deserialize_bytes, raw_bytes, serialize_bytes
from serving.core.errors import invalid
from serving.frontends.rest.infer_header import InferHeader, InputHeader, check_header
from serving.frontends.rest.json_body import JsonObject
from serving.frontends.rest.json_input import array_from_json, flattened

_TOKENS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def load_example(text: str) -> object:
    """Return the value of a JSON text, in which the tokens NaN and Infinity may stand. INVALID_ARG for what is none."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        if "NaN" in text or "Infinity" in text:
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                pass
        raise invalid(f"it is not JSON: {error}") from None


def read_tensors(request: JsonObject) -> tuple[InferHeader, dict[str, Tensor]]:
    """Return the header of a request, and the tensors of its inputs. INVALID_ARG for what is wrong with them, and for what an
    example cannot hold: shared memory, and binary data behind the JSON."""
    inputs = request.get("inputs")
    plain = [_without_base64(item) for item in inputs] if isinstance(inputs, list) else inputs
    header, data = check_header(request | {"inputs": plain})
    if len(header.given) < len(header.inputs):
        raise invalid(
            "an example holds its tensors itself: as 'data' or 'base64', not in shared memory nor behind the JSON"
        )
    tensors = {}
    for spec, item, values in zip(header.inputs, inputs if isinstance(inputs, list) else (), data, strict=True):
        tensors[spec.name] = _from_base64(spec, item["base64"]) if "base64" in item else _from_data(spec, values)
    return header, tensors


def write_tensor(name: str, tensor: Tensor) -> JsonObject:
    """Return a tensor as `read_tensors` takes it."""
    row = datatype_of(tensor)
    value: JsonObject = {"name": name, "datatype": row.name, "shape": list(tensor.shape)}
    flat: NDArray[Any] = tensor.reshape(-1)
    if row.name == "BYTES":
        try:
            return value | {"data": [one if isinstance(one, str) else bytes(one).decode() for one in flat]}
        except UnicodeDecodeError:
            return value | {"base64": base64.b64encode(serialize_bytes(tensor)).decode()}
    if row.name in ("FP16", "BF16"):
        flat = flat.astype(np.float32)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return value | {"data": [one if math.isfinite(one) else _NAMES.get(one, "NaN") for one in flat.tolist()]}
    return value | {"data": orjson.Fragment(orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY))}


def _without_base64(item: object) -> object:
    if not isinstance(item, dict) or "base64" not in item:
        return item
    if "data" in item:
        raise invalid("expected either 'data' or 'base64' of a tensor, got both")
    return {key: value for key, value in item.items() if key != "base64"} | {"data": []}


def _from_data(spec: InputHeader, data: object) -> Tensor:
    row = spec.row
    if row.dtype.kind not in "fV" and row.name not in ("FP16", "BF16"):
        return array_from_json(spec.name, row, spec.shape, spec.elements, data)
    if isinstance(data, list):
        data = [_TOKENS.get(one, one) if isinstance(one, str) else one for one in flattened(spec.name, data)]
    read_as = DATATYPES["FP32"] if row.itemsize == 2 else row
    return array_from_json(spec.name, read_as, spec.shape, spec.elements, data).astype(row.dtype, copy=False)


def _from_base64(spec: InputHeader, text: object) -> Tensor:
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if not data and text != "":
        raise invalid(f"input '{spec.name}': expected 'base64' to be the tensor's binary data in base64")
    if spec.row.itemsize == 0:
        return deserialize_bytes(data, spec.elements).reshape(spec.shape)
    wanted = spec.elements * spec.row.itemsize
    if len(data) != wanted:
        raise invalid(
            f"input '{spec.name}' of shape {list(spec.shape)} needs {wanted} bytes, its 'base64' has {len(data)}"
        )
    if spec.row.name == "BOOL":
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(spec.shape)
    return np.frombuffer(data, spec.row.dtype).reshape(spec.shape)


def binary_size(tensor: Tensor) -> int:
    """Return how many bytes a tensor has as binary data."""
    return len(raw_bytes(tensor)) if tensor.dtype.kind in "OSU" else int(tensor.nbytes)
