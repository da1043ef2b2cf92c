"""Keeps the worst mismatches of a shadow, with their inputs and both answers, within the policy's limits.

They are kept only in memory. The dashboard fetches them by their ids.
"""

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from repository.config.traffic import Keep
from repository.core.comparison import Comparison
from serving.core.datatypes import Tensor
from serving.resources.request_memory import RequestMemory

DAY_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A kept mismatch. id: a number that grows with each mismatch, even across restarts. at: when it was found (unix seconds).
    score: the score of the Comparison. size: the bytes of all tensors."""

    id: int
    at: float
    score: float
    max_absolute: float
    detail: str
    inputs: Mapping[str, Tensor]
    stable: Mapping[str, Tensor]
    candidate: Mapping[str, Tensor]
    size: int


class Mismatches:
    """Used on the event loop's thread. The kept tensors count as request memory."""

    def __init__(self, keep: Keep | None, memory: RequestMemory) -> None:
        """keep: how much may be kept, or None if no inputs and outputs may be kept."""
        self._keep = keep
        self._memory = memory
        self._kept: dict[int, Mismatch] = {}
        self._bytes = 0
        self._ids = itertools.count(time.time_ns() // 1_000_000)  # a restarted server begins with a higher number

    @property
    def keeps(self) -> bool:
        """Whether inputs and outputs may be kept."""
        return self._keep is not None

    def configure(self, keep: Keep | None) -> None:
        """Replace the limits, and forget the mismatches beyond them."""
        self._keep = keep
        self._shrink()

    def tick(self) -> None:
        """Forget the mismatches that are older than the policy allows."""
        if self._keep is not None:
            self.forget(time.time() - self._keep.days * DAY_S)

    def offer(
        self,
        found: Comparison,
        inputs: Mapping[str, Tensor],
        stable: Mapping[str, Tensor],
        candidate: Mapping[str, Tensor],
        size: int,
    ) -> bool:
        """Keep a mismatch if it is among the worst. Return whether it is kept. If so, this object releases its memory later."""
        keep = self._keep
        if keep is None or size > keep.bytes or not self._has_place(keep, found, size):
            return False
        identifier = next(self._ids)
        detail = "; ".join(found.details)
        inputs, stable, candidate = _own_copies(inputs), _own_copies(stable), _own_copies(candidate)
        self._kept[identifier] = Mismatch(
            identifier, time.time(), found.score, found.max_absolute, detail, inputs, stable, candidate, size
        )
        self._bytes += size
        self._shrink()
        return True

    def after(self, identifier: int) -> list[Mismatch]:
        """Return the kept mismatches with higher ids, the oldest first."""
        return [one for one in self._kept.values() if one.id > identifier]

    def clear(self) -> None:
        self.forget(math.inf)

    def forget(self, until: float) -> None:
        """Forget the mismatches that were found up to the time `until`, in unix seconds."""
        for one in [one for one in self._kept.values() if one.at <= until]:
            self._forget(one.id)

    def _has_place(self, keep: Keep, found: Comparison, size: int) -> bool:
        """Return whether a mismatch can be kept without forgetting another that is at least as bad."""
        count, bytes_ = len(self._kept) + 1, self._bytes + size
        for one in sorted(self._kept.values(), key=_badness):
            if count <= keep.count and bytes_ <= keep.bytes:
                break
            if (one.score, one.max_absolute) >= (found.score, found.max_absolute):
                return False
            count, bytes_ = count - 1, bytes_ - one.size
        return True

    def _shrink(self) -> None:
        keep = self._keep
        for one in sorted(self._kept.values(), key=_badness):
            if keep is not None and len(self._kept) <= keep.count and self._bytes <= keep.bytes:
                return
            self._forget(one.id)

    def _forget(self, identifier: int) -> None:
        size = self._kept.pop(identifier).size
        self._bytes -= size
        self._memory.give(size)


def _own_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that own their memory: a view would keep a larger buffer alive, or its buffer could be overwritten."""
    return {name: tensor if tensor.base is None else np.array(tensor) for name, tensor in tensors.items()}


def _badness(one: Mismatch) -> tuple[float, float, int]:
    return one.score, one.max_absolute, one.id
