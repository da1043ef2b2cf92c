"""The interface of a protocol to a model on another server.

RemoteProtocol      sends a request; there is one class for each protocol, listed in `protocols.py`
    RemoteAnswer    the unchecked answer, which `remote_model.py` compares with the outputs that the model declares
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import orjson

from repository.config.listed_servers import Address
from serving.core.datatypes import Tensor
from serving.core.errors import ServingError, internal, invalid, unavailable
from serving.core.in_flight import InFlightRequest
from serving.core.request import Parameters

P = ParamSpec("P")
T = TypeVar("T")

LARGE = 128 << 10  # JSON of this many bytes is written or read on a thread
_VERSION = re.compile(r"([0-9]{1,9})(?:\.0)?", re.ASCII)
REFUSALS = (400, 413, 415, 422)  # status codes for a mistake in the request
MAX_QUOTED = 300  # characters of another server's message


@dataclass(slots=True)
class RemoteAnswer:
    """outputs: name -> tensor with the batch dimension. version: the version of the model that answered; 0 if the server names
    no version, or no number."""

    outputs: dict[str, Tensor]
    version: int = 0
    parameters: Parameters = field(default_factory=dict)


class RemoteProtocol(ABC):
    """Created and called on the event loop's thread. outputs: the outputs that it can return, or None for all of the model."""

    outputs: frozenset[str] | None = None

    @abstractmethod
    async def infer(self, request: InFlightRequest) -> RemoteAnswer:
        """Send a request, whose inputs are checked and in host memory. Raises ServingError if it fails."""

    @abstractmethod
    async def close(self) -> None:
        """End the connections."""


def request_bytes(request: InFlightRequest) -> int:
    """Return the approximate size of the inputs in bytes."""
    return sum(tensor.nbytes for tensor in request.inputs.values())


def read_json(content: bytes | memoryview) -> Any:
    """Parse JSON. Raises ValueError if it is malformed. NaN and Infinity are accepted, because many servers write them."""
    try:
        return orjson.loads(content)
    except ValueError:
        text = bytes(content)
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def version_number(text: object) -> int:
    """Return a version as a number ("2.0" as 2), or 0 if it is not a number."""
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    return int(found[1]) if found else 0


def refused(address: Address, status: int, body: bytes) -> ServingError:
    """Return the error for an answer without outputs, by its HTTP status.

    A mistake in the request becomes INVALID_ARG, so that guardrails count it as refused. A temporary error becomes UNAVAILABLE,
    and so does an error that an operator of the other server must fix (no such model, no permission).
    """
    if 300 <= status < 400:
        return unavailable(
            f"the server at {address} answers with a redirect (HTTP {status}), which is not followed: "
            "name the address that it leads to"
        )
    if status in (401, 403):
        return unavailable(f"{not_permitted(address)} (HTTP {status})")
    detail = _error_text(body)
    message = f"the server at {address} answered with HTTP {status}{detail and f': {detail}'}"
    if status in REFUSALS:
        return invalid(message)
    return unavailable(message) if status in (404, 408, 429) or status >= 502 else internal(message)


def not_permitted(address: Address) -> str:
    return f"the server at {address} denies permission: list the needed headers in --traffic-remotes"


def _error_text(body: bytes) -> str:
    """Return a server's error message: "error", "detail" or "message" of a JSON object, or else the JSON itself."""
    try:
        found = orjson.loads(body) if len(body) < 1 << 16 else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        for name in ("error", "detail", "message"):
            if isinstance(found.get(name), str):
                return _in_a_line(found[name])
    return _in_a_line(orjson.dumps(found).decode()) if found is not None else ""


def _in_a_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTED else f"{line[:MAX_QUOTED]} ..."


async def off_loop(size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function that writes or reads `size` bytes. If `size` is large, call it on a worker thread."""
    if size < LARGE:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all calls. If one call raises an error, cancel the others and raise that error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
