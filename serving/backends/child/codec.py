"""Encodes batches and answers for a child process, and decodes its messages.

The child's messages are checked, because the child runs the code of a model's author. A message that does not match its type in
serving.backends.channel.messages raises ProtocolError or an exception of MALFORMED, and the child is killed.
"""

import mmap
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import (
    AnswerBody,
    ParameterValue,
    RequestDetails,
    RequestMessage,
    SharedParameters,
    TensorRow,
)
from serving.backends.channel.tensors import Array, Memory, TensorWriter, type_of
from serving.core.datatypes import DATATYPES, Tensor, deserialize_bytes
from serving.core.device_tensor import DeviceTensor, host_array
from serving.core.devices import gpu_count
from serving.core.errors import BackendFailed, Code, ServingError, without_addresses
from serving.core.in_flight import InFlightRequest, Observer
from serving.core.request import InferenceRequest, Parameters, SequencePosition
from serving.core.response import InferenceResponse

COPY_BYTES = 64 << 10  # tensors up to this size are copied, so that their segment is free immediately
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

LOOP_STRINGS = 1000  # the most elements of BYTES tensors that the loop writes
LOOP_STRING_BYTES = 64 << 10  # the most bytes of BYTES tensors that the loop reads

_MAX_DIMS = 32
_MAX_TEXT = 16 << 10

SharedMemory: TypeAlias = "Memory | NDArray[np.uint8]"
"""A segment, or a copy of it. An array is a view whose last reference frees the segment."""

Answer = InferenceResponse | ServingError | AnswerBody | None
"""The answer to a child's question; None for the end of a stream without a response."""

ReceivedRow = Sequence[Any]
"""A received TensorRow that is not checked yet. It is a list, because JSON has no tuples."""

Shared = dict[int, tuple[int, Mapping[str, ParameterValue]]]
"""The parameters of a batch's requests: id of the mapping -> (index, mapping). Several requests may share a mapping."""

Handler = Callable[[Any, Memory], AnswerBody | None]
"""Handles a child's message of one `op`, with the memory of its tensors. Returns the answer, or None if there is no answer
or it follows later."""


# -- to the child ------------------------------------------------------------------------------------------------------
class Encoded(NamedTuple):
    """The encoded form of a batch. parameters: the parameters of its requests. writer: has the inputs."""

    requests: Sequence[RequestMessage]
    parameters: SharedParameters
    writer: TensorWriter


class RequestEncoder:
    """Encodes the requests of one model for its child process.

    may_take_long: whether `takes_long` can return True for this model.
    """

    def __init__(self, config: ModelConfig, window: tuple[int, int, float] | None = None) -> None:
        """window: for a decoupled model, the arguments of the child's ResponseWindow."""
        self._outputs = tuple(
            output.name for output in config.output
        )  # names that are not sent if a request asks for exactly these outputs
        self.may_take_long = gpu_count() > 0 or any(one.data_type == DataType.TYPE_STRING for one in config.input)
        self._window = window

    def encode(self, requests: Sequence[InFlightRequest]) -> Encoded:
        """Return the encoded batch. Tensors of one input are adjacent, in the order of the requests."""
        writer = TensorWriter()
        shared: Shared = {}
        described: Sequence[RequestMessage]
        if len(requests) == 1:
            request = requests[0]
            own = [_add(writer, name, tensor) for name, tensor in request.inputs.items()]
            described = [(request.asked.id, request.batch_size, own, self._details(request, shared))]
        else:
            described = [
                (request.asked.id, request.batch_size, mine, self._details(request, shared))
                for request, mine in zip(requests, _joined_rows(requests, writer), strict=True)
            ]
        return Encoded(described, [dict(one) for _, one in shared.values()] if shared else [], writer)

    def takes_long(self, requests: Sequence[InFlightRequest]) -> bool:
        """Return whether `encode` would block the loop, because of many strings or tensors on a GPU."""
        tensors: list[Tensor | DeviceTensor] = [tensor for request in requests for tensor in request.inputs.values()]
        strings = 0
        for tensor in tensors:
            if isinstance(tensor, DeviceTensor):
                return True
            if tensor.dtype.hasobject:
                strings += tensor.size
        return strings > LOOP_STRINGS

    def _details(self, request: InFlightRequest, shared: Shared) -> RequestDetails | None:
        asked, sequence, requested = request.asked, request.sequence, request.requested_outputs
        details: RequestDetails = {}
        if requested and requested != self._outputs:
            details["requested"] = requested
        if asked.parameters:
            details["shared"] = shared.setdefault(id(asked.parameters), (len(shared), asked.parameters))[0]
        if asked.priority:
            details["priority"] = asked.priority
        if asked.timeout_us:
            details["timeout"] = asked.timeout_us
        if sequence.id:
            details["sequence"] = sequence.id
            details["flags"] = sequence.start + 2 * sequence.end
        if request.observers:
            details["trace"] = _trace_context(request.observers)
        if self._window is not None and request.responder.flow is not None:
            details["window"] = self._window
        return details or None


def _trace_context(observers: Sequence[Observer]) -> str:
    for observer in observers:
        context = observer.context()
        if context:
            return context
    return ""


def _joined_rows(requests: Sequence[InFlightRequest], writer: TensorWriter) -> list[list[TensorRow]]:
    rows: list[list[TensorRow]] = [[] for _ in requests]
    for name in dict.fromkeys(name for request in requests for name in request.inputs):
        first = True
        for request, mine in zip(requests, rows, strict=True):
            if name in request.inputs:
                mine.append(_add(writer, name, request.inputs[name], align=first))
                first = False
    return rows


def _add(writer: TensorWriter, name: str, tensor: Tensor, align: bool = True) -> TensorRow:
    array = tensor if type(tensor) is np.ndarray else host_array(tensor)
    return writer.add(name, type_of(array).name, array, align)


def encode_answer(answer: Answer, writer: TensorWriter) -> AnswerBody:
    """Encode the answer to a child's question. Its tensors are added to `writer`."""
    if answer is None:
        return {}
    if isinstance(answer, ServingError):
        return {"error": (answer.code.value, answer.message)}
    if not isinstance(answer, InferenceResponse):
        return answer
    rows = [_add(writer, name, tensor) for name, tensor in answer.outputs.items()]
    return {"outputs": rows, "parameters": answer.parameters}


# -- from the child ----------------------------------------------------------------------------------------------------
def decode_request(message: Mapping[str, Any], memory: Memory) -> InferenceRequest:
    """Return the request that a model sends to another model."""
    texts = message["model"], message["version"], message["request_id"], *message["requested"]
    numbers = message["priority"], message["timeout"], message["flags"]
    sequence = message["sequence"]
    if not all(isinstance(text, str) for text in texts) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ProtocolError("an inference on another model is badly described")
    if not isinstance(sequence, str) and (type(sequence) is not int or sequence < 0):
        raise ProtocolError("a correlation id must be a number or a text")
    return InferenceRequest(
        model_name=message["model"],
        model_version=message["version"],
        inputs=decode_tensors(message["inputs"], memory),
        id=message["request_id"],
        requested_outputs=tuple(message["requested"]),
        parameters=decode_parameters(message),
        priority=message["priority"],
        timeout_us=message["timeout"],
        sequence=SequencePosition(sequence, bool(message["flags"] & 1), bool(message["flags"] & 2)),
    )


def decode_tensors(rows: Sequence[ReceivedRow], memory: Memory) -> dict[str, Tensor]:
    """Return the tensors of a segment that is used once: small ones as copies, large ones as views, which keep it mapped."""
    used = used_bytes(rows, memory)
    held = memory[:used] if used <= COPY_BYTES else np.frombuffer(memory, np.uint8)
    return {row[0]: decode_tensor(row, held) for row in rows}


def used_bytes(rows: Iterable[ReceivedRow], memory: Memory) -> int:
    """Return the offset at which the last tensor ends. Raises ProtocolError if the offset is outside the segment."""
    used = 0
    for row in rows:
        end = row[3] + row[4]
        if end > used:
            used = end
    if used > len(memory):
        raise ProtocolError(f"the outputs end at byte {used} of a segment of {len(memory)}")
    return used


def decode_tensor(row: ReceivedRow, memory: SharedMemory) -> Array:
    """Return the array that a row describes. Raises ProtocolError if the array is outside the memory, or has the wrong size."""
    name, kind, shape, offset, length = row
    if len(shape) > _MAX_DIMS:
        raise ProtocolError(f"output '{name}' is badly described")
    count = 1
    for number in shape:
        if type(number) is not int or number < 0:
            raise ProtocolError(f"output '{name}' is badly described")
        count *= number
    if type(offset) is not int or offset < 0 or type(length) is not int or length < 0:
        raise ProtocolError(f"output '{name}' is badly described")
    if offset + length > len(memory):
        raise ProtocolError(f"output '{name}' lies outside its segment")
    datatype = DATATYPES[kind]
    if kind == "BYTES":
        try:
            data = memoryview(cast("mmap.mmap", memory))[offset : offset + length]
            return deserialize_bytes(data, count).reshape(shape)
        except ServingError as error:
            raise ProtocolError(f"output '{name}': {error}") from None
    if count * datatype.itemsize != length:
        raise ProtocolError(f"output '{name}' has {length} bytes, not those of its shape")
    return np.ndarray(shape, datatype.dtype, memory, offset) if count else np.empty(shape, datatype.dtype)


def decode_error(parts: Sequence[object]) -> ServingError:
    """Return the client's error for an ErrorPair or a HandlerError. The child sends such an error when the model raised an
    exception or returned an error."""
    code, text, *status_and_reason = parts
    known = Code[code] if isinstance(code, str) and code in Code.__members__ else Code.INTERNAL
    message = without_addresses(str(text)[:_MAX_TEXT])
    match status_and_reason:
        case [int() as status, str() as reason] if 400 <= status <= 999:
            return BackendFailed(known, message, status, without_addresses(reason[:_MAX_TEXT]))
    return ServingError(known, message)


def decode_failed(answer: Mapping[str, object]) -> ServingError:
    """Return the client's error for a Failed message, which says that a load or a batch failed."""
    status_and_reason = [answer[key] for key in ("status", "reason") if key in answer]
    return decode_error((answer.get("code"), answer.get("message"), *status_and_reason))


def decode_parameters(message: Mapping[str, Any]) -> Parameters:
    """Return the parameters of a response or request. Raises ProtocolError if a value has a type that is not allowed."""
    found: Parameters = {}
    if "parameters" not in message:
        return found
    for key, value in message["parameters"].items():
        if not isinstance(value, str | int | float | bool):
            raise ProtocolError(
                f"a response parameter must be a string, a number or a boolean, not {type(value).__name__}"
            )
        found[str(key)] = value
    return found


def requested_outputs(request: InFlightRequest, outputs: Sequence[str], found: Container[str]) -> list[str]:
    """Return the names in `outputs` that the request asks for and that its response has."""
    asked = request.requested_outputs
    return [name for name in outputs if (not asked or name in asked) and name in found]
