"""KServe V2 over HTTP. Tensors are sent as binary data if the server lists that extension, else as JSON.

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_binary_data.md.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.listed_servers import Address
from repository.config.traffic import Remote
from serving.core.datatypes import DATATYPES, Tensor, datatype_of, deserialize_bytes, raw_bytes
from serving.core.errors import ServingError, internal, unsupported
from serving.core.in_flight import InFlightRequest
from serving.core.request import Parameters
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.http_client import Chunk, HttpClient
from serving.traffic.remotes.protocol import (
    RemoteAnswer,
    RemoteProtocol,
    off_loop,
    read_json,
    refused,
    request_bytes,
    version_number,
)

_numbers = itertools.count(1)
BINARY = "binary_tensor_data"
_HEADER_LENGTH = "Inference-Header-Content-Length"


class V2Http(RemoteProtocol):
    def __init__(self, remote: Remote, config: ModelConfig, access: RemoteAccess, memory: RequestMemory) -> None:
        self._address = access.address
        self._client = HttpClient(access, memory)
        version = ("versions", remote.version) if remote.version else ()
        self._path = access.address.below("v2", "models", remote.model or config.name, *version, "infer")
        self._binary: bool | None = None  # whether the server takes binary data; None until it has been asked

    async def infer(self, request: InFlightRequest) -> RemoteAnswer:
        if self._binary is None:
            self._binary = await self._takes_binary()
        if self._binary:
            headers, chunks = encode(request, True)
        else:
            headers, chunks = await off_loop(request_bytes(request), encode, request, False)
        answer = await self._client.post(self._path, headers, chunks)
        if answer.status != 200:
            raise refused(self._address, answer.status, answer.body)
        length = answer.headers.get(_HEADER_LENGTH.lower(), "")
        read = int(length) if length.isdigit() else len(answer.body)
        return await off_loop(read, decode, self._address, answer.body, length)

    async def _takes_binary(self) -> bool:
        """Return whether the server lists the extension for binary data. Raises ServingError if the server is unavailable."""
        answer = await self._client.get(f"{self._address.path}/v2")
        if answer.status not in (200, 404, 405):
            raise refused(self._address, answer.status, answer.body)
        try:
            return answer.status == 200 and BINARY in orjson.loads(answer.body)["extensions"]
        except (ValueError, TypeError, KeyError):
            return False

    async def close(self) -> None:
        await self._client.close()


def parameters_of(request: InFlightRequest) -> Parameters:
    """Return a request's parameters for the protocol, including its sequence, priority and timeout."""
    asked = request.asked
    parameters = dict(asked.parameters)
    if asked.sequence.id:
        parameters |= asked.sequence.as_parameters()
    if asked.priority:
        parameters["priority"] = asked.priority
    if asked.timeout_us:
        parameters["timeout"] = asked.timeout_us
    return parameters


def encode(request: InFlightRequest, binary: bool) -> tuple[dict[str, str], list[Chunk]]:
    """Return the headers and the body of a request. Raises UNSUPPORTED if it must be JSON, and JSON cannot carry a tensor."""
    asked = request.asked
    # KServe's own server returns an answer only to a request with an id.
    body: dict[str, Any] = {"id": asked.id or f"slipway-{next(_numbers)}", "inputs": []}
    parameters = parameters_of(request)
    if asked.requested_outputs:
        body["outputs"] = [{"name": name, "parameters": {"binary_data": binary}} for name in asked.requested_outputs]
    elif binary:
        parameters["binary_data_output"] = True
    if parameters:
        body["parameters"] = parameters
    behind: list[Chunk] = []
    for name, tensor in request.inputs.items():
        row: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor).name, "shape": list(tensor.shape)}
        if binary:
            data = raw_bytes(tensor)
            row["parameters"] = {"binary_data_size": len(data)}
            behind.append(data)
        else:
            row["data"] = json_data(name, tensor)
        body["inputs"].append(row)
    head = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return {"Content-Type": "application/json"}, [head]
    return {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(head))}, [head, *behind]


def json_data(name: str, tensor: Tensor) -> object:
    """Return a tensor's elements as a flat list for JSON. Raises UNSUPPORTED if JSON cannot carry them."""
    flat = tensor.reshape(-1)
    return [json_text(name, one) for one in flat] if tensor.dtype.kind == "O" else json_numbers(name, flat)


def json_text(name: str, value: bytes | str) -> str:
    """Return an element of BYTES as text. Raises UNSUPPORTED if it is not UTF-8."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise unsupported(f"input '{name}' has bytes that are not UTF-8, which JSON cannot carry") from None


def json_numbers(name: str, numbers: Tensor) -> Tensor:
    """Return numbers for orjson, which writes NaN as null. Raises UNSUPPORTED for infinities, which would become null, too."""
    if numbers.dtype.kind not in "biu":
        if datatype_of(numbers).name in ("FP16", "BF16"):
            numbers = numbers.astype(np.float32)
        if np.isinf(numbers).any():
            raise unsupported(f"input '{name}' holds infinite numbers, which the other server's JSON cannot carry")
    return np.ascontiguousarray(numbers) if numbers.ndim else numbers


def decode(address: Address, body: bytes, header_length: str) -> RemoteAnswer:
    """Decode an answer. Raises INTERNAL if it is malformed."""
    try:
        size = int(header_length) if header_length else len(body)
        if not 0 <= size <= len(body):
            raise ValueError
        answer = read_json(memoryview(body)[:size])
        outputs = _outputs(answer["outputs"], memoryview(body)[size:])
        parameters = answer.get("parameters")
        kept = (
            {k: v for k, v in parameters.items() if isinstance(v, str | int | float)}
            if isinstance(parameters, dict)
            else {}
        )
        return RemoteAnswer(outputs, version_number(answer.get("model_version")), kept)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, ServingError):
        raise internal(
            f"the server at {address} answered with something other than outputs of the V2 protocol"
        ) from None


def _outputs(rows: Sequence[Any], binary: memoryview) -> dict[str, Tensor]:
    found = {}
    offset = 0
    for output in rows:
        row, shape = DATATYPES[output["datatype"]], tuple(output["shape"])
        if any(type(dim) is not int or dim < 0 for dim in shape):
            raise ValueError
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = array_of(row.name, output["data"]).reshape(shape)
            continue
        data = binary[offset : offset + size]
        if type(size) is not int or len(data) != size:
            raise ValueError
        offset += size
        found[output["name"]] = tensor_of(row.name, shape, data)
    return found


def tensor_of(datatype: str, shape: tuple[int, ...], data: memoryview | bytes) -> Tensor:
    """Return the tensor with this binary data. Raises ValueError or ServingError if the data does not fit."""
    row = DATATYPES[datatype]
    count = math.prod(shape)
    if row.itemsize == 0:
        return deserialize_bytes(data, count).reshape(shape)
    if len(data) != count * row.itemsize:
        raise ValueError
    if row.name == "BOOL":
        truths: Tensor = np.frombuffer(data, np.uint8) != 0
        return truths.reshape(shape)
    array: Tensor = np.ndarray(shape, row.dtype, data) if count else np.empty(shape, row.dtype)
    return array if array.flags.aligned else array.copy()


def array_of(datatype: str, data: object) -> Tensor:
    """Return an array of the datatype from JSON values, flat or nested. null becomes NaN. Raises ValueError, TypeError or
    OverflowError if values do not fit into the datatype, or are not nested evenly."""
    row = DATATYPES[datatype]
    if row.name == "BYTES":
        texts = np.array(data, np.object_)
        flat = texts.reshape(-1)
        if not all(isinstance(one, str) for one in flat):
            raise ValueError
        for index, text in enumerate(flat.tolist()):
            flat[index] = text.encode()
        return flat.reshape(texts.shape)
    if row.dtype.kind not in "iub":
        numbers: Tensor = np.array(data, np.float64).astype(row.dtype)
        return numbers
    given = np.array(data)
    if given.dtype == row.dtype or not given.size:
        return given.astype(row.dtype)
    if given.dtype.kind not in "iubf":
        raise ValueError
    # Cast the original values, because numpy has made doubles of numbers around 2**63 in `given`. 3.0 is accepted as 3, because
    # many languages write it like that.
    cast: Tensor = np.array(data, row.dtype)
    if not np.array_equal(cast.astype(given.dtype), given):
        raise OverflowError
    return cast
