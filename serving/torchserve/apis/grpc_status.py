"""The gRPC status for each HTTP status.

Source: answers of TorchServe 0.12 where handlers raise PredictionException with such a code.
"""

from serving.frontends.grpc.status import Status

_OF_HTTP = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.ABORTED,
    413: Status.RESOURCE_EXHAUSTED,
    416: Status.OUT_OF_RANGE,
    429: Status.RESOURCE_EXHAUSTED,
    499: Status.CANCELLED,
    501: Status.UNIMPLEMENTED,
    503: Status.UNAVAILABLE,
    504: Status.DEADLINE_EXCEEDED,
}


def status_of_http(status: int) -> Status:
    if 400 <= status < 500:
        return _OF_HTTP.get(status, Status.FAILED_PRECONDITION)
    return _OF_HTTP.get(status, Status.INTERNAL if 500 <= status < 600 else Status.UNKNOWN)
