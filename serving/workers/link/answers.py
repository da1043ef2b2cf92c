"""The format of answers that the core sends to a worker.

(number, version, outputs, details)     outputs: a flat tuple of name, character of the datatype, shape and data of each output
                                        details: None, or (parameters, whether a trace waits until the answer is sent)
(number, None, error, details)          error: (kind, code, message, seconds until a retry or 0), None for a
                                        decoupled model
"""

from typing import Any

from numpy import ndarray

from serving.core.datatypes import Tensor
from serving.core.errors import (
    Code,
    Exhausted,
    NotYet,
    PermissionDenied,
    QuotaReached,
    ServingError,
    Unauthenticated,
)
from serving.core.request import Parameters
from serving.workers.link.shared_area import AreaReader, AreaWriter
from serving.workers.link.tensors import DTYPES, INLINE, TEXT, pack, unpack

Outputs = tuple[Any, ...]
ErrorParts = tuple[str, str, str, int]
AnswerDetails = tuple[Parameters, bool] | None

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Exhausted, NotYet, PermissionDenied, Unauthenticated)}


def write_outputs(outputs: dict[str, Tensor], area: AreaWriter) -> Outputs:
    parts: list[object] = []
    for name, tensor in outputs.items():
        char = tensor.dtype.char
        small = tensor.nbytes <= INLINE and char not in TEXT
        parts += (name, char, tensor.shape, tensor.tobytes() if small else pack(tensor, area))
    return tuple(parts)


def read_outputs(parts: Outputs, area: AreaReader) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    left = iter(parts)
    for name, char, shape, payload in zip(left, left, left, left, strict=True):
        if type(payload) is bytes and char not in TEXT:
            outputs[name] = ndarray(shape, DTYPES[char], payload)
        else:
            outputs[name] = unpack(char, shape, payload, area)
    return outputs


def discard_outputs(parts: Outputs, area: AreaReader) -> None:
    """Free the places in shared memory of outputs that nothing waits for."""
    for payload in parts[3::4]:
        if type(payload) is tuple:
            area.freed.append(payload[0])


def write_error(error: ServingError) -> ErrorParts:
    wait_s = error.retry_after_s if isinstance(error, QuotaReached) else 0
    return type(error).__name__, error.code.value, error.message, wait_s


def read_error(parts: ErrorParts) -> ServingError:
    kind, code, message, wait_s = parts
    if wait_s:
        return QuotaReached(message, wait_s)
    made: ServingError = _KINDS[kind](message) if kind in _KINDS else ServingError(Code(code), message)
    return made
