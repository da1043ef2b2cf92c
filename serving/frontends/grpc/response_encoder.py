"""InferenceResponse -> ModelInferResponse bytes, alone or inside of a ModelStreamInferResponse.

Clients repeat themselves: a response's names, datatypes and shapes are mostly those of the last one. Their bytes are kept, so
that protobuf runs once for each kind of response; raw tensors are put behind them by hand, so that large ones are not copied.

Source: KServe's grpc_service.proto, and protobuf's encoding (protobuf.dev/programming-guides/encoding).
"""

from tritonclient.grpc import service_pb2 as pb

from serving.core.datatypes import datatype_of, raw_bytes
from serving.core.response import InferenceResponse
from serving.frontends.http2.stream import Buffer

_KEPT_HEADS = 1024

# field number << 3 | wire type 2 (length-delimited)
_ID = bytes([3 << 3 | 2])
_RAW_OUTPUT_CONTENTS = bytes([6 << 3 | 2])
_INFER_RESPONSE = bytes([2 << 3 | 2])  # of ModelStreamInferResponse


RequestIdentity = tuple[str, str, str]  # id, model name and model version, as the client gave them


class ResponseEncoder:
    """Encodes the responses of all connections."""

    def __init__(self) -> None:
        self._heads: dict[tuple[object, ...], bytes] = {}

    def encode(self, response: InferenceResponse) -> tuple[list[Buffer], int]:
        """Return the message as buffers to be joined at once, and their size in bytes."""
        outputs = response.outputs
        key = (
            response.model_name,
            response.model_version,
            *[(name, array.dtype, array.shape) for name, array in outputs.items()],
        )
        head = None if response.parameters or response.in_shared_memory else self._heads.get(key)
        if head is None:
            head = _response_head(response)
            if not response.parameters and not response.in_shared_memory:
                if len(self._heads) >= _KEPT_HEADS:
                    self._heads.clear()
                self._heads[key] = head
        parts: list[Buffer] = [head]
        size = len(head)
        if response.id:
            identifier = _id_field(response.id)
            parts.append(identifier)
            size += len(identifier)
        for name, array in outputs.items():
            # An output in shared memory has an empty place among the raw ones: clients count them.
            data = b"" if response.in_shared_memory and name in response.in_shared_memory else raw_bytes(array)
            length = len(data)
            prefix = _raw_output_prefix(length)
            parts += (prefix, data)
            size += len(prefix) + length
        return parts, size

    def encode_for_stream(self, response: InferenceResponse, final: bool) -> tuple[list[Buffer], int]:
        """Return a ModelStreamInferResponse, marked with Triton's parameter triton_final_response, as buffers that may be
        kept, and their size in bytes."""
        parts, size = self.encode(response)
        flag = _FINAL if final else _NOT_FINAL
        header = _INFER_RESPONSE + _varint(size + len(flag))
        return [header, b"".join(parts), flag], len(header) + size + len(flag)


def encode_without_tensors(identity: RequestIdentity, final: bool, error: str = "") -> bytes:
    """Return a ModelStreamInferResponse that says what was wrong with a request, or (without `error`) that it has ended."""
    message = pb.ModelStreamInferResponse(error_message=error)
    answer = message.infer_response
    answer.id, answer.model_name, answer.model_version = identity
    answer.parameters["triton_final_response"].bool_param = final
    return bytes(message.SerializeToString())


def _final_flag(final: bool) -> bytes:
    """Return what, after a ModelInferResponse, adds Triton's parameter to it."""
    message = pb.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = final
    return bytes(message.SerializeToString())


_FINAL = _final_flag(True)
_NOT_FINAL = _final_flag(False)


def _response_head(response: InferenceResponse) -> bytes:
    """Return a ModelInferResponse without its id and raw tensors."""
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
    for name, array in response.outputs.items():
        output = message.outputs.add(name=name, datatype=datatype_of(array).name, shape=array.shape)
        if response.in_shared_memory and name in response.in_shared_memory:
            placed = response.in_shared_memory[name]
            _set_parameter(output.parameters["shared_memory_region"], placed.region)
            _set_parameter(output.parameters["shared_memory_byte_size"], placed.byte_size)
            if placed.offset:
                _set_parameter(output.parameters["shared_memory_offset"], placed.offset)
    for key, value in response.parameters.items():
        _set_parameter(message.parameters[key], value)
    return bytes(message.SerializeToString())


def _set_parameter(parameter: pb.InferParameter, value: "str | int | float | bool") -> None:
    """Store a Python value in the member of InferParameter that fits its type."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _id_field(identifier: str) -> bytes:
    """Return the id field of a ModelInferResponse."""
    value = identifier.encode()
    return _ID + _varint(len(value)) + value


def _raw_output_prefix(size: int) -> bytes:
    """Return what stands before a tensor of `size` bytes in raw_output_contents."""
    return _RAW_OUTPUT_CONTENTS + _varint(size)
