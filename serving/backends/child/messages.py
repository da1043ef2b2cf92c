"""Messages of a child's own calls: what it asks, as a request, and the answer that it gets. See calls.py."""

from collections.abc import Callable
from typing import Any

import numpy as np

from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import TensorRow as Row
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.channel.tensors import TensorWriter, type_of
from serving.backends.child.tensors import COPY_BYTES, parameters_of, tensor, used_bytes
from serving.core.device_tensor import host_array
from serving.core.errors import ServingError
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response import InferenceResponse

Answer = InferenceResponse | ServingError | Message | None


def request_of(message: Message, memory: Any) -> InferenceRequest:
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
        inputs=tensors_of(message["inputs"], memory),
        id=message["request_id"],
        requested_outputs=tuple(message["requested"]),
        parameters=parameters_of(message),
        priority=message["priority"],
        timeout_us=message["timeout"],
        sequence=SequencePosition(sequence, bool(message["flags"] & 1), bool(message["flags"] & 2)),
    )


def tensors_of(rows: list[Row], memory: Any) -> dict[str, Any]:
    """Small ones copied; large ones as views, whose end frees the segment."""
    used = used_bytes(rows, memory)
    held = memory[:used] if used <= COPY_BYTES else np.frombuffer(memory, np.uint8)
    return {row[0]: tensor(row, held) for row in rows}


def encode_answer(answer: Answer, writer: TensorWriter) -> Message:
    if answer is None:
        return {}
    if isinstance(answer, ServingError):
        return {"error": [answer.code.value, answer.message]}
    if isinstance(answer, dict):
        return answer
    rows = []
    for name, value in answer.outputs.items():
        array = host_array(value)
        rows.append(writer.add(name, type_of(array).name, array))
    return {"outputs": rows, "parameters": answer.parameters}


def quietly(call: Callable[..., object], *arguments: object) -> None:
    """A call to a loop that may be closed: the server has ended meanwhile."""
    try:
        call(*arguments)
    except RuntimeError:
        pass
