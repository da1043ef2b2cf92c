"""The interface of schedulers, which take checked requests and choose when, where and in which batch each one runs.

Every method is called on the event loop's thread. A request leaves a scheduler exactly once: in a batch for an instance,
through `remove` after its client left, or through `reject`.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from mypy_extensions import mypyc_attr
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.errors import ServingError
from serving.core.in_flight import InFlightRequest

# Refuses a request that the scheduler had accepted, for example after a queue timeout.
Reject = Callable[[InFlightRequest, ServingError], None]


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Accepts requests, orders them, and gives them to instances or models."""

    @abstractmethod
    def submit(self, request: InFlightRequest) -> None:
        """Queue a request. Raises UNAVAILABLE if the queue is full."""

    @abstractmethod
    def remove(self, request: InFlightRequest) -> bool:
        """Remove a request whose client left. Return False if the request is no longer queued."""

    @abstractmethod
    def configure(self, config: ModelConfig) -> None:
        """Apply new batching settings. Queued requests stay queued."""

    def waiting(self) -> list[InFlightRequest]:
        return []

    def sequence_start_ns(self, identifier: int | str) -> int:
        """Return when an open sequence began, in monotonic ns; 0 if no sequence of this id is open."""
        return 0

    def sequences_ended(self) -> "asyncio.Future[None] | None":
        """Return a future that is done when no sequence is open, or None if none is open now."""
        return None

    @property
    @abstractmethod
    def pending(self) -> int:
        """Return the number of requests that are accepted and not yet executed by an instance."""
