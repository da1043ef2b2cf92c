"""Captured tensors as the body of an infer request, and the tensors of an answer: V2 with Triton's binary tensor data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dashboard.shared.exceptions import DashboardError
from repository.core.capture_files import datatype_name, dtype_of, element_bytes
from repository.core.json_types import JsonObject
from repository.core.tensors import Tensor, from_binary, tensor_json

Array = NDArray[Any]
_LENGTH = "inference-header-content-length"
_NO_V2 = "the answer does not follow the V2 protocol"


def request_body(inputs: Mapping[str, Array], outputs: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """Return the body of a request and its headers. outputs: those that are asked for; all if there are none."""
    rows: list[JsonObject] = []
    parts: list[bytes] = []
    for name, tensor in inputs.items():
        content = _binary(tensor)
        parts.append(content)
        rows.append(
            {
                "name": name,
                "datatype": datatype_name(tensor.dtype),
                "shape": list(tensor.shape),
                "parameters": {"binary_data_size": len(content)},
            }
        )
    head: JsonObject = {"inputs": [*rows], "parameters": {"binary_data_output": True}}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    text = orjson.dumps(head)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    return text + b"".join(parts), headers


def outputs_in(answer: bytes) -> dict[str, Array]:
    """Return the outputs in an HTTP answer of status 200. Raises DashboardError if it does not follow V2."""
    try:
        lines, _, body = answer.partition(b"\r\n\r\n")
        size = len(body)
        for line in lines.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == _LENGTH.encode():
                size = int(value)
        found, at = {}, size
        for row in orjson.loads(body[:size])["outputs"]:
            length = row.get("parameters", {}).get("binary_data_size")
            found[row["name"]] = _array(row, None if length is None else body[at : at + length])
            at += length or 0
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DashboardError(_NO_V2) from None
    return found


def _array(row: Mapping[str, Any], content: bytes | None) -> Array:
    name, datatype, shape = row["name"], row["datatype"], tuple(row["shape"])
    if datatype == "BYTES":
        elements = [element_bytes(one) for one in row["data"]] if content is None else _elements(name, content)
        found: Array = np.empty(len(elements), object)
        found[:] = elements
        return found.reshape(shape)
    if content is None:
        return np.array(row["data"], dtype_of(datatype)).reshape(shape)
    return np.frombuffer(content, dtype_of(datatype), math.prod(shape)).reshape(shape)


def _elements(name: str, content: bytes) -> list[bytes]:
    return [element_bytes(one) for one in from_binary(name, "BYTES", content)]


def _binary(tensor: Array) -> bytes:
    if tensor.dtype.kind not in "OSU":
        return tensor.tobytes()
    elements = [element_bytes(one) for one in tensor.reshape(-1)]
    return b"".join(len(one).to_bytes(4, "little") + one for one in elements)


def as_json(name: str, tensor: Array) -> JsonObject:
    """Return a tensor as the JSON of examples."""
    flat = tensor.reshape(-1)
    elements = [element_bytes(one) for one in flat] if flat.dtype.kind in "OSU" else flat.tolist()
    return tensor_json(Tensor(name, datatype_name(tensor.dtype), tuple(tensor.shape), elements))
