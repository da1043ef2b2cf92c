"""Errors on the OpenAI-compatible routes, as {"error": {"message", "type", "param", "code"}}.

Source: OpenAI API reference, Errors.
"""

from serving.core.errors import Code, ServingError

PREFIX = "/v1/"  # the prefix of the paths of these routes
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class WrongField(ServingError):
    """A field of the request has a wrong value."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)
        self.param = param


def error_object(error: Exception, status: int, message: str) -> object:
    """Return the body of an error reply; see `body` of http1.message.error_reply."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = error.param if isinstance(error, WrongField) else None
    return {"error": {"message": message, "type": kind, "param": param, "code": _CODES.get(status)}}
