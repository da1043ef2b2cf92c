"""A stand-in for a Model whose weights are not in memory, until the first request loads them.

submit(request) -> the request waits -> the lifecycle builds the Model -> hand_over(model): every waiting request, in order
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine
from functools import partial

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.base.backend import ModelSpec
from serving.core.errors import safely, unavailable, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.waiters import Waiters
from serving.extensions.classification import Labels
from serving.models.model import Model
from serving.resources.memory import NOTHING
from serving.telemetry.statistics import ModelStatistics

ASLEEP = "asleep: loads on its first request"
RETRY_S = 1.0  # after a failed load, requests fail immediately for this long

# A function that builds the model or raises an error. It builds nothing if no request waits any more.
# In one step of the event loop, it replaces the sleeping model by the new model and calls `hand_over`.
Wake = Callable[["SleepingModel"], Coroutine[None, None, None]]


class SleepingModel:
    """`config` is complete and checked, so metadata and configuration are available without the weights."""

    memory = held = NOTHING

    def __init__(
        self, spec: ModelSpec, statistics: ModelStatistics, wake: Wake, labels: Labels, has_room: Callable[[], bool]
    ) -> None:
        """has_room: returns whether the model's weights fit into memory next to the loaded models."""
        self.spec = spec
        self._has_room = has_room
        self._needs_eviction = False
        self._room_checked_at = 0.0
        self.config = spec.config
        self.statistics = statistics
        self.warnings: list[str] = []
        self.labels = labels  # for an ensemble that got an answer from the model before it went to sleep
        self._wake = wake
        self._waiters: Waiters[InFlightRequest] = Waiters(self._may_go)
        self._awake: Model | SleepingModel | None = None  # the loaded model, while requests are handed over to it
        self._task: asyncio.Task[None] | None = None
        self._failure = ""  # why the last load failed
        self._failed_at = 0.0

    @property
    def pending(self) -> int:
        return len(self._waiters)

    in_flight = pending

    @property
    def needs_eviction(self) -> bool:
        """Return whether other models would have to be evicted to load this one. Checked at most once a second."""
        now = time.monotonic()
        if now - self._room_checked_at >= RETRY_S:
            self._needs_eviction, self._room_checked_at = not self._has_room(), now
        return self._needs_eviction

    def submit(self, request: InFlightRequest) -> None:
        """Keep the request and begin to load. Raises UNAVAILABLE if the last load failed less than RETRY_S ago."""
        if self._failure and time.monotonic() < self._failed_at + RETRY_S:
            failure = unavailable(self._failure)
            self.statistics.count_failure(request, "REJECTED", failure)
            raise failure
        request.accept(self)
        self._waiters.wait(request, partial(self._go_on, request))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._wake_up())

    def take_back(self, wanted: Callable[[InFlightRequest], bool]) -> list[InFlightRequest]:
        """Remove and return the waiting requests for which `wanted` is true. Requests of sequences stay."""
        taken = [request for request in self._waiters if wanted(request) and not request.sequence.id]
        for request in taken:
            self._waiters.withdraw(request)
            request.reset()
        return taken

    def sequence_start_ns(self, identifier: int | str) -> int:
        """Return when the first waiting request of a sequence arrived, in monotonic ns; 0 if no request waits."""
        return next((one.arrival_ns for one in self._waiters if one.sequence.id == identifier), 0)

    def unready_reasons(self) -> list[str]:
        return []

    async def confirm_ready(self) -> bool:
        """Return True, because a sleeping model only waits for its first request and has no instances to ask."""
        return True

    async def reconfigure(self, config: ModelConfig) -> None:
        self.config = config
        self.spec = dataclasses.replace(self.spec, config=config)

    async def drain(self) -> None:
        """Wait until every waiting request has been passed on or answered."""
        if self._task is not None:
            await self._task

    def hand_over(self, model: "Model | SleepingModel") -> None:
        """Submit all waiting requests to the model, in order."""
        self._awake = model
        self._waiters.ask()
        self._awake = None  # keeps no reference, so that the lifecycle can free the model

    async def _wake_up(self) -> None:
        try:
            await self._wake(self)
        except Exception as error:
            reason = unexpected(error, f"loading '{self.spec.name}'").message
            self._failure = f"model '{self.spec.name}' could not be loaded for its first request: {reason}"
            self._failed_at = time.monotonic()
        finally:
            self._task = None
        self._waiters.ask()  # after a failure, answers the waiting requests with it

    def _may_go(self, request: InFlightRequest) -> bool:
        """Return whether the load is over, successful or not."""
        return self._awake is not None or self._task is None

    def _go_on(self, request: InFlightRequest) -> None:
        request.give_back()
        if self._awake is not None:
            request.submit_to(self._awake.submit)
            return
        failure = unavailable(self._failure)
        safely("counting a failure", self.statistics.count_failure, request, "OTHER", failure)
        request.respond(failure)

    def request_ended(self, request: InFlightRequest) -> None:
        """Do nothing, because the waiters have already forgotten the request."""

    def request_cancelled(self, request: InFlightRequest) -> None:
        """Remove a request that its client has cancelled."""
        self._waiters.withdraw(request)
        self.statistics.count_cancel(request)
