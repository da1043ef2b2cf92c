"""Chooses the arm of a rollout that answers a request.

For a request without a key, the arm is drawn at random. A key (a header, a parameter, the request's id) is hashed with the
rollout's name, and the request goes to the candidate if the hash is below the weight. So a key has the same arm on every server
and after every restart, and a growing weight only moves keys from stable to the candidate. A sequence without any other key has
its correlation ID as key. Requests that one request causes (steps of an ensemble, calls of a Python model, choices of a
completion) have the key of that request, so that no answer mixes two versions.
When the weight changes, a sequence stays on the arm where it began. Schedulers and other servers know their open sequences, and
a SequenceRoute sends further requests there (`proceed`). The sequences of ensembles are remembered in this module.
"""

from hashlib import blake2b
from random import random

from repository.config.traffic import Sticky
from serving.core.client_headers import header_of
from serving.core.in_flight import InFlightRequest
from serving.core.request import ParameterValue
from serving.traffic.arms import ArmCounter, AsksCandidate, Target

_HASHES = 1 << 64
_REMEMBERED = 1 << 16  # the number of sequences that are remembered, the most recently used ones


class TrafficSplit:
    """Takes the requests of one model that name no version."""

    __slots__ = (
        "_candidate",
        "_keys_below",
        "_mirror",
        "_mirrored",
        "_on_candidate",
        "_rollout",
        "_share",
        "_stable",
        "_sticky",
    )

    def __init__(self, rollout: str, stable: ArmCounter, candidate: ArmCounter) -> None:
        self._rollout = blake2b(f"{rollout}\0".encode(), digest_size=8)
        self._sticky: Sticky | None = None
        self._mirror: AsksCandidate | None = None
        self.set_arms(stable, candidate)
        self.set_weight(0.0)

    def set_arms(self, stable: ArmCounter, candidate: ArmCounter) -> None:
        self._stable = self._mirrored = stable
        self._candidate = candidate
        self._mirror = None
        self._on_candidate: dict[int | str, bool] = {}  # whether each remembered sequence is on the candidate

    def set_mirror(self, mirror: AsksCandidate | None) -> None:
        """Set the mirror, or remove it if it is None. Its `wants` decides which requests to stable are offered to it."""
        if mirror is not self._mirror:
            self._mirror, self._mirrored = mirror, ArmCounter(self._stable.counted_arm, mirror)

    def set_sticky(self, sticky: Sticky | None) -> None:
        self._sticky = sticky

    def set_weight(self, weight: float) -> None:
        """Give this percentage of the requests to the candidate."""
        self._share = weight / 100
        self._keys_below = int(self._share * _HASHES)

    def submit(self, request: InFlightRequest) -> None:
        """Give a request to an arm. Raises the error of the arm's model."""
        chosen = self._sequence_for_candidate(request) if request.sequence.id else self._for_candidate(request)
        if request.mirrored:
            (self._candidate if chosen else self._stable).counted_arm.submit(request)
        elif chosen:
            self._candidate.send(request)
        elif self._mirror is not None and self._mirror.wants():
            self._mirrored.send(request)
        else:
            self._stable.send(request)

    def proceed(self, request: InFlightRequest, target: Target, version: int) -> None:
        """Submit a request to the model that has its sequence open. Count it if that model or its version belongs to an arm.

        version: the version of the model; 0 for a model on another server."""
        for counter in (self._candidate, self._stable):
            if counter.counted_arm.target is target or (version and counter.counted_arm.version == version):
                counter.begin(request)
                break
        if request.sequence.end:
            self._on_candidate.pop(request.sequence.id, None)
        target.submit(request)

    def _sequence_for_candidate(self, request: InFlightRequest) -> bool:
        position, known = request.sequence, self._on_candidate
        found = known.pop(position.id, None)
        if found is None or position.start or self._candidate.counted_arm.target is None:
            found = self._for_candidate(request)
        if not position.end:
            known[position.id] = found
            if len(known) > _REMEMBERED:
                del known[next(iter(known))]
        return found

    def _for_candidate(self, request: InFlightRequest) -> bool:
        if self._share <= 0.0:
            return False
        key = self._key(request) if self._sticky is not None else None
        if key is None and request.sequence.id:
            key = f"sequence {request.sequence.id}"
        elif key is None and request.origin:
            key = f"origin {request.origin}"
        if key is None:
            return random() < self._share
        found = self._rollout.copy()
        found.update(key.encode("utf-8", "surrogatepass"))
        return int.from_bytes(found.digest(), "big") < self._keys_below

    def _key(self, request: InFlightRequest) -> str | None:
        """Return the sticky value of a request, or None if it has none."""
        sticky, asked = self._sticky, request.asked
        if sticky is None:
            return None
        if sticky.by == "header":
            value: ParameterValue | None = header_of(request, sticky.name)
        elif sticky.by == "parameter":
            value = asked.parameters.get(sticky.name)
        else:
            value = "" if request.sequence.id else asked.id  # the requests of a sequence have different ids
        return None if value is None or value == "" else str(value)
