"""The arms of a rollout. Each arm counts its requests, and has a model that answers them."""

import time
from collections.abc import Callable
from typing import Protocol

from repository.config.traffic import Remote
from serving.core.errors import Code, ServingError, safely
from serving.core.in_flight import InFlightRequest
from serving.core.response import Answer
from serving.core.rollout_arm import ArmObserver, arm_of
from serving.traffic.figures import ArmFigures

STABLE, CANDIDATE = "stable", "candidate"
# Errors with these codes are mistakes of the client. They do not count as failures of an arm.
_CLIENTS = (Code.INVALID_ARG, Code.NOT_FOUND, Code.UNSUPPORTED, Code.ALREADY_EXISTS)


class Target(Protocol):
    """The model that answers for an arm: a model of this server, asleep or awake, or a model on another server."""

    @property
    def pending(self) -> int:
        """Return how many requests wait for the model."""

    @property
    def needs_eviction(self) -> bool:
        """Return whether the model sleeps and cannot be loaded unless other models are evicted."""

    def submit(self, request: InFlightRequest) -> None:
        """Take a request. Raises the ServingError with which the caller must answer the request if that fails."""

    def take_back(self, wanted: Callable[[InFlightRequest], bool]) -> list[InFlightRequest]:
        """Remove and return the waiting requests for which `wanted` is true; requests of sequences stay."""


class AsksCandidate(Protocol):
    """The interface of a Mirror: it sends requests of the stable arm to the candidate, too, and compares the answers."""

    def wants(self) -> bool:
        """Return whether to offer the next request of the stable arm to this object."""

    def offer(self, request: InFlightRequest, answer: Answer, took_ns: int) -> None:
        """Take a request and its answer, which is about to be sent. took_ns: how long the answer took."""


class Arm:
    """One arm of a rollout. target: the model that answers its requests, or None while the arm does not serve.

    version: the version of a local model; 0 if the model is on another server. remote: the other server, or None.
    """

    __slots__ = ("figures", "name", "remote", "target", "version")

    def __init__(self, name: str, version: int, remote: Remote | None, figures: ArmFigures) -> None:
        self.name = name
        self.version = version
        self.remote = remote
        self.figures = figures
        self.target: Target | None = None

    @property
    def words(self) -> str:
        """The arm's model, as log lines name it."""
        return f"the model at {self.remote.url}" if self.remote is not None else f"version {self.version}"

    def submit(self, request: InFlightRequest) -> None:
        """Submit a request to the arm's model without counting it."""
        target = self.target
        if target is None:
            raise ServingError(Code.UNAVAILABLE, f"the {self.name} version of the rollout does not serve")
        target.submit(request)

    def pending(self) -> int:
        return self.target.pending if self.target is not None else 0

    def needs_eviction(self) -> bool:
        return self.target is not None and self.target.needs_eviction

    def take_back(self) -> list[InFlightRequest]:
        """Remove and return the waiting requests of this arm, so that the other arm can answer them."""
        if self.target is None:
            return []
        taken = safely("taking back what waits for an arm", self.target.take_back, self._counts) or []
        for request in taken:
            request.observers = tuple(one for one in request.observers if not isinstance(one, ArmCounter))
            self.figures.give_up(time.monotonic_ns() - request.arrival_ns)
        return taken

    def _counts(self, request: InFlightRequest) -> bool:
        observer = arm_of(request)
        return isinstance(observer, ArmCounter) and observer.counted_arm is self


class ArmCounter(ArmObserver):
    """Observes all requests of an arm and counts how they end. mirror: the object to which answers are offered, or None."""

    __slots__ = ("_figures", "_mirror", "counted_arm")

    def __init__(self, arm: Arm, mirror: AsksCandidate | None = None) -> None:
        super().__init__(arm.name, str(arm.version or ""))
        self.counted_arm = arm
        self._figures = arm.figures
        self._mirror = mirror

    def send(self, request: InFlightRequest) -> None:
        """Count a request, and give it to the arm."""
        self.begin(request)
        self.counted_arm.submit(request)

    def begin(self, request: InFlightRequest) -> None:
        """Count a request of the arm, and observe it."""
        request.observers = (*request.observers, self)
        self._figures.begin()

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        if not final:
            return
        took_ns = time.monotonic_ns() - request.arrival_ns
        if not isinstance(answer, ServingError):
            self._figures.count(took_ns, False)
            if self._mirror is not None:
                self._mirror.offer(request, answer, took_ns)
        elif answer.code is Code.CANCELLED:
            self._figures.give_up(took_ns)
        elif answer.code in _CLIENTS:
            self._figures.refuse()
        else:
            self._figures.count(took_ns, True)
