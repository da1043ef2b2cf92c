"""Errors with a protocol-neutral code; each frontend maps the code once.

ServingError(code, message)     every error that a client or an operator sees
    made by: invalid() not_found() unavailable() unsupported() already_exists() cancelled() internal()
    Unauthenticated(message)    a missing or unknown token (HTTP 401, gRPC UNAUTHENTICATED)
    PermissionDenied(message)   the caller lacks the permission or the key (HTTP 403, gRPC PERMISSION_DENIED)
    Outdated(message)           another watcher leads by now (HTTP 409, gRPC ABORTED)
    NotYet(message)             a model that will be loaded soon (HTTP 503 with Retry-After, gRPC UNAVAILABLE)
    Exhausted(message)          no room for this request now (HTTP 503, gRPC RESOURCE_EXHAUSTED)
    QuotaReached(message, s)    the caller's quota is used up (HTTP 429 with Retry-After, gRPC RESOURCE_EXHAUSTED)
    NoAnswer(message)           another server got the request and did not answer (HTTP 503, gRPC UNAVAILABLE)
    StepFailed(ensemble, step, error)  a step of an ensemble has failed
    ProcessDied(message)        the process of a model ended (HTTP 500, gRPC INTERNAL)
    BackendFailed(...)          a model's code has failed with an HTTP status and reason of its own

A message names the expected value and the given one, and contains no path, key or traceback.

Code of models and observers may raise any exception. `unexpected` turns it into the client's error. `safely` lets the request
continue without the failed part. Both functions log the exception once, with its traceback.
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

MAX_MESSAGE = 16_000  # the most characters of a message, because it may quote a client's text


class Code(Enum):
    """The codes of Triton's TRITONSERVER_Error_Code, by name."""

    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"


class ServingError(Exception):
    """A failure that the caller sees as one sentence."""

    def __init__(self, code: Code, message: str) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]} ..."
        super().__init__(message)
        self.code = code
        self.message = message


class Unauthenticated(ServingError):
    """The caller sent no valid token."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


class PermissionDenied(ServingError):
    """The caller lacks the permission. A retry does not help."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


class Outdated(ServingError):
    """The caller's number is below another caller's, who has taken its place. A retry does not help."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


class NotYet(ServingError):
    """The model will be loaded soon. The caller should retry after RETRY_AFTER_S."""

    RETRY_AFTER_S = 1

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class Exhausted(ServingError):
    """The server has no memory for this request now."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class QuotaReached(ServingError):
    """The quota of the caller is used up. The caller may retry after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(Code.UNAVAILABLE, message)
        self.args = (message, retry_after_s)
        self.retry_after_s = retry_after_s


class NoAnswer(ServingError):
    """Another server got the request and did not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)


class ProcessDied(ServingError):
    """The process of the request's model ended or was killed."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INTERNAL, message)


class BackendFailed(ServingError):
    """A model's code has failed with an HTTP status and a reason of its own, for protocols without error codes."""

    def __init__(self, code: Code, message: str, status: int, reason: str) -> None:
        super().__init__(code, message)
        self.status = status
        self.reason = reason


class StepFailed(ServingError):
    """A step of an ensemble has failed. step: the name of its model."""

    def __init__(self, ensemble: str, step: str, error: ServingError) -> None:
        super().__init__(error.code, f"in ensemble '{ensemble}', step '{step}': {error.message}")
        self.step = step


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


def unexpected(error: BaseException, action: str) -> ServingError:
    """Return the error that the client of a failed action gets: a ServingError unchanged, INTERNAL for any other exception.
    Other exceptions are logged. action: the name of the action for the log and the message, such as "dispatching a batch"."""
    if isinstance(error, ServingError):
        return error
    log.error("%s failed", action, exc_info=error)
    return internal(f"{action} failed in the server ({type(error).__name__}); its log says where")


def without_traceback(error: E) -> E:
    """Return an equal error without a traceback, because a traceback keeps earlier callers' frames and requests in memory."""
    if not isinstance(error, ServingError):
        with suppress(Exception):  # `copy` keeps attributes that are not arguments, such as a filename
            return copy.copy(error)
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


async def outcome_of(shared: "asyncio.Future[T]") -> T:
    """Wait for a future that may have several waiters, and return its result or raise a copy of its error. Cancelling one
    waiter does not cancel the future."""
    await asyncio.wait([shared])
    error = shared.exception()
    if error is not None:
        raise without_traceback(error) from error  # the log shows where the cause was raised
    return shared.result()


def safely(action: str, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """Call a function whose failure must not stop a request. Return its result, or log its exception and return None.

    action: the name of the call in the log, such as "counting a failure"."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        log.error("%s failed", action, exc_info=error)
        return None


# -- texts of models, for clients ------------------------------------------------------------------------------------------
def storable(text: str) -> str:
    """Return a text from a model or another server without the characters that UTF-8 or a database cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def without_addresses(text: str) -> str:
    """Return the text without the addresses of objects: "<Image object at 0x7f30>" -> "<Image object>"."""
    return _ADDRESS.sub("", text)


def without_paths(text: str) -> str:
    """Return the text with each absolute path shortened to its last name."""
    return _PATH.sub(r"\1", text)
