"""Converts the results of a handler to bytes as TorchServe does, so that clients of the V2 protocol get the same bytes.

    str                    its UTF-8
    bytes, bytearray       the same bytes
    a tensor of PyTorch    the output of torch.save
    anything else          JSON, indented by two

If outputs are declared, a handler returns them by name in a dict.
"""

import io
import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.backends.channel.messages import ParameterValue, RequestMessage, ResponseBody, TensorRow
from serving.backends.channel.tensors import Array, TensorWriter, dtype_of
from serving.torchserve.handlers.failures import UNSUPPORTED_OUTPUT, InvalidAnswer

try:
    import orjson
except ImportError:  # a model's own Python may lack it
    orjson = None  # type: ignore[assignment]
else:
    _AS_PYTHON = (
        orjson.OPT_INDENT_2
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME
        | orjson.OPT_PASSTHROUGH_SUBCLASS
    )

if TYPE_CHECKING:
    from ts.context import Context, RequestProcessor

_DATA = "data"
_EXPONENT = re.compile(rb"e[-+1-9]")


class AnswerEncoder:
    """Encodes the answers of one model. outputs: name and datatype of the declared outputs, or None for the output `data`."""

    def __init__(self, outputs: Sequence[tuple[str, str]] | None, batched: bool) -> None:
        self._outputs = outputs
        self._batched = batched

    def encode(
        self, requests: Sequence[RequestMessage], answers: list[object], context: "Context", writer: TensorWriter
    ) -> list[ResponseBody]:
        """Return the response to each request of a batch. Each row of a request has one answer."""
        processors = context.request_processor
        found = []
        start = 0
        for _, rows, _, _ in requests:
            end = start + rows if self._batched else start + 1
            found.append(self.response(answers[start:end], processors[start], writer))
            start = end
        return found

    def spans(self, requests: Sequence[RequestMessage]) -> list[slice]:
        """Return, for each request, the slice of the batch's entries that are its rows."""
        found = []
        start = 0
        for _, rows, _, _ in requests:
            end = start + rows if self._batched else start + 1
            found.append(slice(start, end))
            start = end
        return found

    def response(self, answers: list[object], processor: "RequestProcessor", writer: TensorWriter) -> ResponseBody:
        """Return the response to one request. Each row of the request has one answer."""
        if self._outputs is None:
            row = writer.add_strings(_DATA, [as_bytes(answer) for answer in answers])
            if not self._batched:
                row = (row[0], row[1], (1,), row[3], row[4])
            response: ResponseBody = {"outputs": [row]}
        else:
            response = {"outputs": self._tensors(answers, self._outputs, writer)}
        if processor.touched:
            response["parameters"] = parameters_of(processor)
        return response

    def _tensors(
        self, answers: list[object], outputs: Sequence[tuple[str, str]], writer: TensorWriter
    ) -> list[TensorRow]:
        rows = []
        for name, kind in outputs:
            values = [_tensor(answer, name, kind, len(outputs)) for answer in answers]
            array = np.stack(values) if self._batched else values[0]
            rows.append(writer.add(name, kind, np.ascontiguousarray(array)))
        return rows


def _tensor(answer: object, name: str, kind: str, outputs: int) -> Array:
    """Return an answer's tensor for an output. Raises InvalidAnswer if the answer has no fitting tensor."""
    value: Any = answer
    if isinstance(answer, dict):
        if name not in answer:
            raise InvalidAnswer(f"an answer of it has no '{name}', which is a declared output", UNSUPPORTED_OUTPUT)
        value = answer[name]
    elif outputs > 1:
        raise InvalidAnswer(
            f"an answer of it is {type(answer).__name__}: for several declared outputs a dict by their names was expected",
            UNSUPPORTED_OUTPUT,
        )
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value.float() if kind in ("BF16", "FP32") else value).numpy()
        return _strings(value) if kind == "BYTES" else np.asarray(value, dtype_of(kind))
    except (TypeError, ValueError) as error:
        raise InvalidAnswer(
            f"its answer for output '{name}' is no tensor of {kind}: {error}", UNSUPPORTED_OUTPUT
        ) from None


def _strings(value: Any) -> Array:
    """Return strings and bytes, in lists or arrays, as a BYTES tensor. Other values become JSON."""
    if isinstance(value, np.ndarray):
        flat, shape = list(value.reshape(-1)), value.shape
    elif isinstance(value, list | tuple):
        flat, shape = list(value), (len(value),)
    else:
        flat, shape = [value], (1,)
    found = np.empty(len(flat), np.object_)
    for index, one in enumerate(flat):
        found[index] = bytes(as_bytes(one))
    return found.reshape(shape)


def as_bytes(answer: Any) -> bytes:
    """Return a handler's answer as the body of a response. Raises InvalidAnswer for an answer that cannot be sent."""
    if isinstance(answer, str):
        return answer.encode("utf-8", "replace")
    if isinstance(answer, (bytes, bytearray)):  # a tuple: a union would be created at each call
        return answer  # type: ignore[return-value]  # only read
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(answer, torch.Tensor):
        file = io.BytesIO()
        torch.save(answer, file)
        return file.getvalue()
    try:
        return _json(answer)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAnswer(
            f"its answer of type {type(answer).__name__} cannot be sent: {error}", UNSUPPORTED_OUTPUT
        ) from None


def _json(answer: Any) -> bytes:
    """Return the text of `json.dumps(answer, indent=2)`. Use orjson, which is far faster, if it writes the same text."""
    if orjson is not None:
        try:
            text: bytes = orjson.dumps(answer, option=_AS_PYTHON)
        except (TypeError, ValueError):
            pass
        else:
            if _is_as_python(text):
                return text
    return json.dumps(answer, indent=2).encode()


def _is_as_python(text: bytes) -> bool:
    """Return whether Python's JSON would have written the same text. Python's JSON differs from orjson's for characters beyond
    ASCII, DEL, NaN, and very small and very large numbers. Return False too for text that only seems to have one of these."""
    other = b"0.0000" in text or b"null" in text or b"\x7f" in text or _EXPONENT.search(text)
    return not other and text.isascii()


def parameters_of(processor: "RequestProcessor") -> dict[str, ParameterValue]:
    """Return the content type, status and headers that a handler has set, as parameters of the response."""
    parameters: dict[str, ParameterValue] = {}
    headers: list[tuple[str, str]] = []
    for name, value in processor.get_response_headers().items():
        if str(name).lower() == "content-type":
            parameters["content_type"] = str(value)
        else:
            headers.append((str(name), str(value)))
    if headers:
        parameters["torchserve_headers"] = json.dumps(headers)
    status = processor.get_response_status_code()
    if status != 200:
        parameters["torchserve_status"] = status
    reason = processor.get_response_status_phrase()
    if reason:
        parameters["torchserve_reason"] = reason
    return parameters
