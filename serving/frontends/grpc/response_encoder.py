"""Encodes an InferenceResponse as a ModelInferResponse, alone or inside of a ModelStreamInferResponse.

Most responses have the names, datatypes and shapes of an earlier response. The bytes that encode these are cached, with the
prefix of each tensor (`ResponseForm`), so that protobuf encodes each kind of response only once. The raw tensors are separate
buffers between the cached bytes, so that large tensors are not copied.

Source: KServe's grpc_service.proto, and protobuf's encoding (protobuf.dev/programming-guides/encoding).
"""

from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as pb

from serving.core.datatypes import COPIED_BYTES, datatype_of, raw_bytes
from serving.core.grpc_parameters import set_parameter
from serving.core.response import InferenceResponse
from serving.core.varints import varint
from serving.frontends.http2.stream import Buffer
from serving.frontends.shared.bounded_cache import BoundedCache

_KEPT_FORMS = 1024

# field number << 3 | wire type 2 (length-delimited)
_ID = bytes([3 << 3 | 2])
_RAW_OUTPUT_CONTENTS = bytes([6 << 3 | 2])
_INFER_RESPONSE = bytes([2 << 3 | 2])  # of ModelStreamInferResponse


RequestIdentity = tuple[str, str, str]  # id, model name and model version, as the client gave them


@dataclass
class ResponseForm:
    """The bytes that responses of the same names, datatypes and shapes share.

    head: the message without the id and the raw tensors. prefixes: the tag and length of each raw tensor; empty if its size is
    not fixed. size: bytes of head, prefixes and tensors. small: whether all tensors have a fixed, small size, and are copied.
    """

    head: bytes
    prefixes: list[bytes]
    size: int
    small: bool


class ResponseEncoder:
    """Encodes the responses of all connections."""

    def __init__(self) -> None:
        self._forms: BoundedCache[tuple[object, ...], ResponseForm] = BoundedCache(_KEPT_FORMS)

    def encode(self, response: InferenceResponse) -> tuple[list[Buffer], int]:
        """Return the message as buffers, some of which may be views of tensors, and their size in bytes."""
        if response.parameters or response.in_shared_memory:
            return _encode(response, _form_of(response))
        outputs = response.outputs
        key: list[object] = [response.model_name, response.model_version]
        for name, array in outputs.items():
            key += (name, array.dtype, array.shape)
        kind = tuple(key)
        form = self._forms.get(kind)
        if form is None:
            form = _form_of(response)
            self._forms.remember(kind, form)
        if not form.small:
            return _encode(response, form)
        parts: list[Buffer] = [form.head]
        size = form.size
        if response.id:
            identifier = _id_field(response.id)
            parts.append(identifier)
            size += len(identifier)
        prefixes = form.prefixes
        for index, array in enumerate(outputs.values()):
            parts += (prefixes[index], array.tobytes())
        return parts, size

    def encode_for_stream(self, response: InferenceResponse, final: bool) -> tuple[list[Buffer], int]:
        """Return a ModelStreamInferResponse with Triton's parameter triton_final_response, as buffers, and their size in bytes.
        The buffers are not views of tensors."""
        parts, size = self.encode(response)
        flag = _FINAL if final else _NOT_FINAL
        header = _INFER_RESPONSE + varint(size + len(flag))
        return [header, b"".join(parts), flag], len(header) + size + len(flag)


def encode_without_tensors(identity: RequestIdentity, final: bool, error: str = "") -> bytes:
    """Return a ModelStreamInferResponse with a request's error or, if `error` is "", an empty response."""
    message = pb.ModelStreamInferResponse(error_message=error)
    answer = message.infer_response
    answer.id, answer.model_name, answer.model_version = identity
    answer.parameters["triton_final_response"].bool_param = final
    return bytes(message.SerializeToString())


def _final_flag(final: bool) -> bytes:
    """Return the encoded parameter `triton_final_response`. Appended to an encoded ModelInferResponse, it is part of that
    message."""
    message = pb.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = final
    return bytes(message.SerializeToString())


_FINAL = _final_flag(True)
_NOT_FINAL = _final_flag(False)


def _encode(response: InferenceResponse, form: ResponseForm) -> tuple[list[Buffer], int]:
    """Encode a response with tensors of any kind; see `ResponseEncoder.encode`."""
    parts: list[Buffer] = [form.head, _id_field(response.id) if response.id else b""]
    for prefix, (name, array) in zip(form.prefixes, response.outputs.items(), strict=True):
        # An output in shared memory has an empty entry in raw_output_contents, because clients index the entries.
        data = b"" if response.in_shared_memory and name in response.in_shared_memory else raw_bytes(array)
        parts += (prefix or _raw_output_prefix(len(data)), data)
    return parts, sum(map(len, parts))


def _form_of(response: InferenceResponse) -> ResponseForm:
    head = _response_head(response)
    size = len(head)
    prefixes: list[bytes] = []
    for array in response.outputs.values():
        fixed = array.dtype.kind not in "OSU" and not response.in_shared_memory
        prefix = _raw_output_prefix(array.nbytes) if fixed else b""
        prefixes.append(prefix)
        size += len(prefix) + array.nbytes
    small = all(prefixes) and all(array.nbytes <= COPIED_BYTES for array in response.outputs.values())
    return ResponseForm(head, prefixes, size, small)


def _response_head(response: InferenceResponse) -> bytes:
    """Return a ModelInferResponse without its id and raw tensors."""
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
    for name, array in response.outputs.items():
        output = message.outputs.add(name=name, datatype=datatype_of(array).name, shape=array.shape)
        if response.in_shared_memory and name in response.in_shared_memory:
            placed = response.in_shared_memory[name]
            set_parameter(output.parameters["shared_memory_region"], placed.region)
            set_parameter(output.parameters["shared_memory_byte_size"], placed.byte_size)
            if placed.offset:
                set_parameter(output.parameters["shared_memory_offset"], placed.offset)
    for key, value in response.parameters.items():
        set_parameter(message.parameters[key], value)
    return bytes(message.SerializeToString())


def _id_field(identifier: str) -> bytes:
    """Return the id field of a ModelInferResponse."""
    value = identifier.encode()
    return _ID + varint(len(value)) + value


def _raw_output_prefix(size: int) -> bytes:
    """Return the tag and the length before a tensor of `size` bytes in raw_output_contents."""
    return _RAW_OUTPUT_CONTENTS + varint(size)
