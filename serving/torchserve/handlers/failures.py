"""The status and reason that clients see when a handler fails, as in TorchServe."""

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ts.utils.util import PredictionException

PREDICTION_FAILED = 503, "Prediction failed"
OUT_OF_RESOURCES = 507, "Out of resources"
INVALID_OUTPUT = 503, "Invalid model predict output"
WRONG_COUNT = 503, "number of batch response mismatched"
UNSUPPORTED_OUTPUT = 503, "Unsupported model output data type."

_CODES = {400: "INVALID_ARG", 404: "NOT_FOUND", 409: "ALREADY_EXISTS", 429: "UNAVAILABLE", 501: "UNSUPPORTED"}


class HandlerProblem(Exception):
    """A problem with a handler. The message is a sentence for the handler's author."""


class InvalidAnswer(HandlerProblem):
    """Raised when a handler has returned a value that cannot be sent. status_and_reason: for clients of TorchServe."""

    def __init__(self, message: str, status_and_reason: tuple[int, str]) -> None:
        super().__init__(message)
        self.status_and_reason = status_and_reason


def status_and_reason(error: BaseException) -> tuple[int, str]:
    """Return the status and reason of an exception."""
    if isinstance(error, InvalidAnswer):
        return error.status_and_reason
    if is_for_client(error):
        raised = cast("PredictionException", error)
        status = raised.error_code
        return status if isinstance(status, int) and 400 <= status <= 999 else 500, str(raised.message)
    if isinstance(error, MemoryError) or "CUDA" in str(error):
        return OUT_OF_RESOURCES
    return PREDICTION_FAILED


def is_for_client(error: BaseException) -> bool:
    """Return whether a handler has raised a PredictionException, which is meant for its client."""
    return any(base.__name__ == "PredictionException" for base in type(error).__mro__)


def code_of(status: int) -> str:
    """Return the name of Triton's error code for a status."""
    if status in (503, 507):
        return "INTERNAL"
    return _CODES.get(status, "INVALID_ARG" if 400 <= status < 500 else "INTERNAL")


def check_answers(answers: object, count: int) -> list[object]:
    """Return a handler's result for `count` requests. Raises InvalidAnswer unless it is a list of one answer per request."""
    if not isinstance(answers, list):
        raise InvalidAnswer(
            f"it returned {type(answers).__name__} where a list with an answer for each request was expected",
            INVALID_OUTPUT,
        )
    if len(answers) != count:
        raise InvalidAnswer(f"it returned {len(answers)} answers for {count} requests", WRONG_COUNT)
    return answers
