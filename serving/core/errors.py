"""Errors with a protocol-neutral code; each frontend maps the code once.

ServingError(code, message)     everything that a client or an operator is told
    made by: invalid() not_found() unavailable() unsupported() already_exists() cancelled() internal()
    Unauthenticated(message)    a missing or unknown token (HTTP 401, gRPC UNAUTHENTICATED)
    PermissionDenied(message)   a known caller, or a missing key, without the right (HTTP 403, gRPC PERMISSION_DENIED)
    NotYet(message)             a model that will be loaded in a moment (HTTP 503 with Retry-After, gRPC UNAVAILABLE)
    Exhausted(message)          no room for this request now (HTTP 503, gRPC RESOURCE_EXHAUSTED)
    NoAnswer(message)           another server was asked, and has not answered (HTTP 503, gRPC UNAVAILABLE)
    StepFailed(ensemble, step, error)  what a step of an ensemble has raised
    HandlerFailed(...)          a model's code or process has failed, with a status and reason of HTTP beside the sentence
    made by: worker_died(), and of what a child says of itself

A message says what was expected and what came. It carries no path, key or stack.

At a boundary (between the loop and a model, or what only looks on) anything may be raised: `unexpected` makes it the answer of
the request that it concerns, `safely` lets the request go on without what has failed. Both log it, once, with its traceback.
"""

import asyncio
import copy
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}\b")
_PATH = re.compile(r"(?<![\w.:/~-])/(?:[\w.+@ -]*[\w.+@-]/)+([\w.+@-]*)")

MAX_MESSAGE = 16_000  # characters; a message may quote what a client sent


class Code(Enum):
    """Triton's TRITONSERVER_Error_Code, by name."""

    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"


class ServingError(Exception):
    """A failure that the caller is told about in one sentence."""

    def __init__(self, code: Code, message: str) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]} ..."
        super().__init__(message)
        self.code = code
        self.message = message


class Unauthenticated(ServingError):
    """The caller has not shown who it is."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


class PermissionDenied(ServingError):
    """The caller may not do this, however often it asks."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


class NotYet(ServingError):
    """What is asked for will be there in a moment: ask again after RETRY_AFTER_S."""

    RETRY_AFTER_S = 1

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class Exhausted(ServingError):
    """The server has no room for this request now."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class NoAnswer(ServingError):
    """Another server was given the request, and its answer has not come."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class HandlerFailed(ServingError):
    """A model's own code, or its process, has failed, with the HTTP `status` and `reason` that frontends without codes tell."""

    def __init__(self, code: Code, message: str, status: int, reason: str) -> None:
        super().__init__(code, message)
        self.status = status
        self.reason = reason


class StepFailed(ServingError):
    """A step of an ensemble has failed: the one with the model `step`."""

    def __init__(self, ensemble: str, step: str, error: ServingError) -> None:
        super().__init__(error.code, f"in ensemble '{ensemble}', step '{step}': {error.message}")
        self.step = step


def worker_died(message: str) -> ServingError:
    """Return the failure of a request whose model's process ended, or had to be: INTERNAL, and HTTP's 500."""
    return HandlerFailed(Code.INTERNAL, message, 500, "Worker died.")


def invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)


def not_found(message: str) -> ServingError:
    return ServingError(Code.NOT_FOUND, message)


def unavailable(message: str) -> ServingError:
    return ServingError(Code.UNAVAILABLE, message)


def unsupported(message: str) -> ServingError:
    return ServingError(Code.UNSUPPORTED, message)


def already_exists(message: str) -> ServingError:
    return ServingError(Code.ALREADY_EXISTS, message)


def cancelled(message: str = "the request was cancelled") -> ServingError:
    return ServingError(Code.CANCELLED, message)


def internal(message: str) -> ServingError:
    return ServingError(Code.INTERNAL, message)


def unexpected(error: BaseException, what: str) -> ServingError:
    """Return what a client is told of an error that was raised in `what` ("dispatching a batch"): a ServingError as it is,
    INTERNAL for any other, which is logged with its traceback."""
    if isinstance(error, ServingError):
        return error
    log.error("%s failed", what, exc_info=error)
    return internal(f"{what} failed in the server ({type(error).__name__}); its log says where")


def unraised(error: E) -> E:
    """Return an equal error that nobody has raised: a raised one refers to the frames that it has passed, and with them to the
    requests of all for whom it was raised before."""
    if not isinstance(error, ServingError):
        with suppress(Exception):  # Python's own keep more than their arguments: a file's name, an encoding
            return copy.copy(error)
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


async def outcome_of(shared: "asyncio.Future[T]") -> T:
    """Return what a future gives for which others may wait too, or raise its error anew. It goes on where a caller is gone."""
    await asyncio.wait([shared])
    error = shared.exception()
    if error is not None:
        raise unraised(error) from error  # where it happened is for the log
    return shared.result()


def safely(what: str, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """Call what a request can do without: return what it returns, or log what it raises and return None.

    what: names the call in the log ("counting a failure")."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        log.error("%s failed", what, exc_info=error)
        return None


# -- what the exception of a model says to a client ---------------------------------------------------------------------
def storable(text: str) -> str:
    """Return what a model or another server has said, as UTF-8 and every database can hold it."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def without_addresses(text: str) -> str:
    """Return the text without the addresses of objects: "<Image object at 0x7f30>" -> "<Image object>"."""
    return _ADDRESS.sub("", text)


def without_paths(text: str) -> str:
    """Return the text with the last name alone of each absolute path of this machine."""
    return _PATH.sub(r"\1", text)
