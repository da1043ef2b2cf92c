"""Requests as bytes: encoded once and sent again and again, because encoding would use more CPU time than the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2 as pb

from dashboard.loads.http2_client import SERVICE, length_prefixed

JSON = MappingProxyType({"Content-Type": "application/json"})
DATATYPES = {np.dtype("float32"): "FP32", np.dtype("int32"): "INT32", np.dtype("int64"): "INT64"}


@dataclass(frozen=True)
class Request:
    """A POST request. http2: true for a call of gRPC, whose body is a length-prefixed message; false for HTTP/1.1.

    headers: of HTTP/1.1, or the metadata of a call.
    """

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    http2: bool = False


def http_request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] = MappingProxyType({}),
    host: str = "localhost",
) -> bytes:
    """Return an HTTP/1.1 request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def plain_json(path: str, fields: Mapping[str, Any]) -> Request:
    """Return a request with `fields` as plain JSON."""
    return Request(path, orjson.dumps(fields), JSON)


def v2_json(model: str, tensors: Mapping[str, np.ndarray]) -> Request:
    """Return an infer request of the V2 protocol with the numbers in the JSON."""
    inputs = [_input(name, array) | {"data": numbers(array)} for name, array in tensors.items()]
    return Request(_path(model), orjson.dumps({"inputs": inputs}), JSON)


def v2_binary(model: str, tensors: Mapping[str, np.ndarray]) -> Request:
    """Return an infer request of the V2 protocol with binary tensors, also in the answer."""
    inputs = [
        _input(name, array) | {"parameters": {"binary_data_size": array.nbytes}} for name, array in tensors.items()
    ]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Request(_path(model), head + b"".join(array.tobytes() for array in tensors.values()), headers)


def v2_grpc(model: str, tensors: Mapping[str, np.ndarray]) -> Request:
    """Return a call of ModelInfer with raw contents."""
    return Request(f"{SERVICE}ModelInfer", length_prefixed(infer_message(model, tensors)), http2=True)


def infer_message(model: str, tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return a serialised ModelInferRequest with raw contents."""
    message = pb.ModelInferRequest(model_name=model)
    for name, array in tensors.items():
        message.inputs.add(name=name, shape=array.shape, datatype=DATATYPES[array.dtype])
        message.raw_input_contents.append(array.tobytes())
    return bytes(message.SerializeToString())


def numbers(array: np.ndarray) -> list[Any]:
    """Return the elements as a client writes them in JSON: floats with six digits after the point."""
    flat: Sequence[Any] = array.ravel().tolist()
    return [round(value, 6) for value in flat] if array.dtype.kind == "f" else list(flat)


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _input(name: str, array: np.ndarray) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype]}
