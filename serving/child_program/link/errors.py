"""The errors of triton_python_backend_utils; the link raises TritonModelException."""

from enum import Enum


class TritonModelException(Exception):
    """Raised by a model. The client gets the exception's text."""


class ErrorCode(Enum):
    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"


class TritonError:
    """An error in place of one response, with INTERNAL as the default code."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str | bytes, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        self._message = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        self._code = ErrorCode(code)

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code
