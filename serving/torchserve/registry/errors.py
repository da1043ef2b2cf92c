"""Errors of TorchServe's APIs in TorchServe's own words: a status, a type and a sentence.

The type is the name of a Java class, which clients read in the body of an error. Source: answers of TorchServe 0.12.
"""

import asyncio

from serving.core.errors import Code, ServingError

_CODES = {400: Code.INVALID_ARG, 404: Code.NOT_FOUND, 409: Code.ALREADY_EXISTS, 503: Code.UNAVAILABLE}


class TorchServeError(ServingError):
    """A refusal or failure that a client gets as {"code": status, "type": type, "message": message}."""

    def __init__(self, status: int, type: str, message: str) -> None:
        super().__init__(_CODES.get(status, Code.INTERNAL), message)
        self.status = status
        self.type = type


class WorkersStarting(TorchServeError):
    """Raised while the model's first workers start, so that predictions wait. `started` is set once they run or have failed."""

    def __init__(self, refusal: TorchServeError, started: asyncio.Event) -> None:
        super().__init__(refusal.status, refusal.type, refusal.message)
        self.started = started


def model_not_found(name: str) -> TorchServeError:
    return TorchServeError(404, "ModelNotFoundException", f"Model not found: {name}")


def version_not_found(name: str, version: str) -> TorchServeError:
    return TorchServeError(
        404, "ModelVersionNotFoundException", f"Model version: {version} does not exist for model: {name}"
    )


def no_worker(name: str, version: str | None = None) -> TorchServeError:
    """Return the error for a prediction with a model that is registered with 0 workers."""
    named = f'Model "{name}' + (f'" Version {version}' if version else "")
    return TorchServeError(
        503,
        "ServiceUnavailableException",
        f'{named}" has no worker to serve inference request. Please use scale workers API to add workers. If this is a '
        "sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize",
    )


def not_served(name: str) -> TorchServeError:
    """Return the error for a prediction with a repository's model that does not serve and cannot be scaled."""
    return TorchServeError(
        503,
        "ServiceUnavailableException",
        f'Model "{name}" has no worker to serve inference request: it failed to load, or is not loaded. Its page in the '
        "dashboard, and the log of this server, say why",
    )


def bad_request(message: str) -> TorchServeError:
    return TorchServeError(400, "BadRequestException", message)


def not_allowed() -> TorchServeError:
    return TorchServeError(
        405, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document."
    )


def no_resource() -> TorchServeError:
    return TorchServeError(
        404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document."
    )


def conflict(message: str) -> TorchServeError:
    return TorchServeError(409, "ConflictStatusException", message)


def server_error(message: str) -> TorchServeError:
    return TorchServeError(500, "InternalServerException", message)
