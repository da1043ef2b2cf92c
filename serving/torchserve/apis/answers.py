"""A handler's answer as HTTP: its bytes, with the status and headers that the handler has set.

The handler's process sends status and headers in parameters of the response, in addition to the bytes of `data`: content_type,
torchserve_status, torchserve_reason, torchserve_headers.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import orjson

from serving.core.datatypes import datatype_of
from serving.core.response import InferenceResponse
from serving.frontends.rest.json_output import dump_json, flat_values
from serving.torchserve.registry.errors import TorchServeError, server_error

OUTPUT = "data"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_NOT_IN_A_LINE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+")
# Headers that a handler may not set: headers about how the answer is sent, and headers that every answer has.
_OURS = frozenset(
    (
        *("connection", "content-length", "keep-alive", "transfer-encoding", "trailer", "upgrade"),
        *("x-request-id", "pragma", "cache-control", "expires"),
    )
)


class HandlerAnswer(NamedTuple):
    """reason: the reason phrase that the handler has set, "" by default. headers: including the content type, if one is set."""

    status: int = 200
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def head(self) -> str:
        """Return the status line and the lines of the headers."""
        lines = [f"HTTP/1.1 {self.status} {self.reason}\r\n"]
        lines.extend(f"{name}: {value}\r\n" for name, value in self.headers)
        return "".join(lines)


PLAIN = HandlerAnswer()


def body_of(response: InferenceResponse, limit: int) -> bytes:
    """Return the bytes of the handler's answer. For a model with other outputs, return JSON with the outputs by name. Raises
    TorchServeError for more than `limit` bytes."""
    output = response.outputs.get(OUTPUT)
    if output is not None and output.size == 1 and output.dtype.hasobject:
        body = output.item()
        if not isinstance(body, bytes):
            body = str(body).encode()
    else:
        body = dump_json({name: flat_values(name, datatype_of(one), one) for name, one in response.outputs.items()})
    if len(body) > limit:
        raise server_error(f"the answer has {len(body)} bytes, more than max_response_size allows: {limit}")
    return body


def answer_of(response: InferenceResponse | None) -> HandlerAnswer:
    """Return the status and headers of the handler's first response. Raises TorchServeError for an interim status."""
    if response is None or not response.parameters:
        return PLAIN
    parameters = response.parameters
    headers: dict[str, tuple[str, str]] = {}
    kind = parameters.get("content_type")
    if kind:
        headers["content-type"] = ("content-type", _in_a_line(str(kind)))
    for name, value in _set_headers(parameters.get("torchserve_headers")):
        key = name.lower()
        if key not in _OURS and _NAME.fullmatch(name):
            headers[key] = (name, _in_a_line(value))
    reason = _in_a_line(str(parameters.get("torchserve_reason", "")))
    return HandlerAnswer(_status(parameters.get("torchserve_status", 200)), reason, tuple(headers.values()))


def _status(status: object) -> int:
    if not isinstance(status, int) or not 200 <= status <= 999:
        raise server_error(f"the handler has set a status that ends no request: {str(status)[:20]}")
    return status


def _set_headers(text: object) -> Iterable[tuple[str, str]]:
    """Return the headers that the handler's process sends as JSON: an object, or a list of pairs."""
    if not text:
        return ()
    try:
        value = orjson.loads(str(text))
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(str(name), str(one)) for name, one in pairs]
    except (ValueError, TypeError):
        raise _unreadable() from None


def _unreadable() -> TorchServeError:
    return server_error("the handler has set headers that cannot be sent")


def _in_a_line(text: str) -> str:
    """Return a text without characters that would end a header's line."""
    return _NOT_IN_A_LINE.sub(" ", text)
