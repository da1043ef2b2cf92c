"""gRPC's status codes, and the code for each error of the server (gRPC's doc/statuscodes.md)."""

from enum import IntEnum

from serving.core.errors import Code, Exhausted, Outdated, PermissionDenied, QuotaReached, ServingError, Unauthenticated


class Status(IntEnum):
    """The value of the trailer grpc-status."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CallError(Exception):
    """Ends the call with this status."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


STATUS_OF = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
}
# Errors that must not become UNAVAILABLE, because clients retry a request that ends with UNAVAILABLE.
_STATUS_OF_KIND = (
    (Exhausted, Status.RESOURCE_EXHAUSTED),
    (QuotaReached, Status.RESOURCE_EXHAUSTED),
    (Unauthenticated, Status.UNAUTHENTICATED),
    (PermissionDenied, Status.PERMISSION_DENIED),
    (Outdated, Status.ABORTED),
)


def status_of(error: ServingError) -> Status:
    for kind, status in _STATUS_OF_KIND:
        if isinstance(error, kind):
            return status
    return STATUS_OF[error.code]
