"""What a child sends, as arrays, errors and parameters: checked before use, for it runs code of the model's author."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import TensorRow as Row
from serving.backends.channel.messages import Unchecked as Message
from serving.core.datatypes import DATATYPES, deserialize_bytes
from serving.core.errors import Code, ServingError
from serving.core.request import Parameters
from serving.core.texts import without_addresses

COPY_BYTES = 64 << 10  # tensors up to this size are copied out, so that their segment is free at once
_MAX_DIMS = 32
_MAX_TEXT = 16 << 10


def used_bytes(rows: list[Row], mapped: Any) -> int:
    """Where the last tensor ends; ProtocolError where that is outside the segment."""
    used: int = max((row[3] + row[4] for row in rows), default=0)
    if used > len(mapped):
        raise ProtocolError(f"the outputs end at byte {used} of a segment of {len(mapped)}")
    return used


def tensor(row: Row, memory: Any) -> NDArray[Any]:
    """The array that a row describes; ProtocolError unless it lies inside the memory and its size is that of its shape."""
    name, kind, shape, offset, length = row
    numbers = [*shape, offset, length]
    if len(numbers) > _MAX_DIMS + 2 or not all(type(number) is int and number >= 0 for number in numbers):
        raise ProtocolError(f"output '{name}' is badly described")
    if offset + length > len(memory):
        raise ProtocolError(f"output '{name}' lies outside its segment")
    datatype = DATATYPES[kind]
    count = math.prod(shape)
    if kind == "BYTES":
        try:
            return deserialize_bytes(memoryview(memory)[offset : offset + length], count).reshape(shape)
        except ServingError as error:
            raise ProtocolError(f"output '{name}': {error}") from None
    if count * datatype.itemsize != length:
        raise ProtocolError(f"output '{name}' has {length} bytes, not those of its shape")
    return np.ndarray(shape, datatype.dtype, memory, offset) if count else np.empty(shape, datatype.dtype)


def error_of(prefix: str, code: Any, message: Any) -> ServingError:
    """What a model's exception, or the error that it gave, says to the client."""
    known = Code[code] if isinstance(code, str) and code in Code.__members__ else Code.INTERNAL
    return ServingError(known, prefix + without_addresses(str(message)[:_MAX_TEXT]))


def parameters_of(message: Message) -> Parameters:
    found: Parameters = {}
    for key, value in message.get("parameters", {}).items():
        if not isinstance(value, str | int | float | bool):
            raise ProtocolError(
                f"a response parameter must be a string, a number or a boolean, not {type(value).__name__}"
            )
        found[str(key)] = value
    return found
