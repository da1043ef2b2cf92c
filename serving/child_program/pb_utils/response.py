"""pb_utils.InferenceResponse, and the encoding and decoding of responses."""

import json
from collections.abc import Iterable, Mapping, Sequence

from serving.backends.channel.messages import AnswerBody, ResponseBody
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.link.errors import ErrorCode, TritonError
from serving.child_program.pb_utils.checks import checked_parameters
from serving.child_program.pb_utils.tensor import Tensor, checked_tensors


class InferenceResponse:
    """Output tensors, or an error instead."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        self._outputs = checked_tensors("output_tensors", output_tensors)
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters, "response")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError, not {type(error).__name__}")

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """Return the parameters as the text of a JSON object."""
        return json.dumps(self._parameters or {})


def encode_response(response: InferenceResponse, wanted: Sequence[str], writer: TensorWriter) -> ResponseBody:
    """Encode a response for the server: its error, or its `wanted` tensors, which go into `writer`."""
    error = response._error
    if error is not None:
        return {"error": (error.code().value, error.message().encode("utf-8", "replace").decode())}
    rows = []
    for tensor in response._outputs:
        name = tensor._name
        if name in wanted:
            kind, array = tensor._host()
            rows.append(writer.add(name, kind, array))
    if response._parameters:
        return {"outputs": rows, "parameters": response._parameters}
    return {"outputs": rows}


def decode_response(message: AnswerBody, memory: Memory, device: str) -> InferenceResponse:
    """Return the response of another model, which is empty if a stream ends without another response.

    memory: the memory of its tensors. device: torch's name for the GPU to copy the tensors to; "" to keep them on the host.
    """
    if "error" in message:
        return error_response(*message["error"])
    tensors = [Tensor._from_memory(row, memory) for row in message.get("outputs", ())]
    if device:
        tensors = [tensor._copied_to(device) for tensor in tensors]
    return InferenceResponse(tensors, parameters=message.get("parameters"))


def error_response(code: str, text: str) -> InferenceResponse:
    """Return a response with an error. code: one of Triton's error codes, such as "INVALID_ARG"."""
    return InferenceResponse([], TritonError(text, ErrorCode(code)))
