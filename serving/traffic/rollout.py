"""One model's rollout: its policy, its two arms, and how requests are shared between them.

The model's lifecycle makes it, changes it in place and ends it.

What is counted, and a breach, belong to the policy's name: they go on while that stays, whatever else of the policy changes. An
arm that comes to mean another version counts from zero. A breach keeps the candidate without requests for as long as the policy
has its name.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from repository.config.traffic import Remote, TrafficPolicy
from repository.core.histogram import Histogram
from serving.core.model_identifier import ModelIdentifier
from serving.traffic.arms import CANDIDATE, STABLE, Arm, Follower, Target
from serving.traffic.figures import ArmFigures
from serving.traffic.split import TrafficSplit

log = logging.getLogger(__name__)

JsonObject = dict[str, object]


class Breach(NamedTuple):
    """Why a candidate gets no requests any more. guardrail: its place in the policy. at: unix time."""

    guardrail: int
    reason: str
    at: float


class Rollout:
    """Used on the event loop's thread."""

    def __init__(self, identifier: ModelIdentifier, policy: TrafficPolicy) -> None:
        self.identifier = identifier
        self.policy = policy
        self.release: int | None = None  # that the policy belongs to
        self.breached: Breach | None = None
        self._arms = {name: self._arm(name, 0) for name in (STABLE, CANDIDATE)}
        self.split = TrafficSplit(policy.rollout, Follower(self.stable), Follower(self.candidate))
        self.configure(policy, None)

    # -- what takes part -------------------------------------------------------------------------------------------
    @property
    def stable(self) -> Arm:
        return self._arms[STABLE]

    @property
    def candidate(self) -> Arm:
        return self._arms[CANDIDATE]

    def configure(self, policy: TrafficPolicy, release: int | None) -> None:
        """Take another policy of the same name; requests under way end with the arm that they were given to."""
        self.policy, self.release = policy, release
        for arm in self._arms.values():
            arm.figures.set_window(int(policy.window_s))
        self.split.set_sticky(policy.sticky)

    def attach(self, default: int, targets: Mapping[int, Target]) -> None:
        """Say which version answers where none is named, and what takes the requests of each version from here on."""
        versions = {STABLE: default, CANDIDATE: self.policy.candidate}
        changed = False
        for name, version in versions.items():
            remote = self._remote(name)
            number = version if remote is None and isinstance(version, int) else 0
            if (self._arms[name].version, self._arms[name].remote) != (number, remote):
                self._arms[name] = self._arm(name, number)
                changed = True
            self._arms[name].target = targets.get(number)
        if changed:
            self.split.set_arms(Follower(self.stable), Follower(self.candidate))
        self._share()

    def detach(self) -> None:
        """Nothing of the model serves."""
        for arm in self._arms.values():
            arm.target = None

    def _arm(self, name: str, version: int) -> Arm:
        return Arm(name, version, self._remote(name), ArmFigures(int(self.policy.window_s)))

    def _remote(self, name: str) -> Remote | None:
        side = self.policy.stable if name == STABLE else self.policy.candidate
        return side if isinstance(side, Remote) else None

    # -- weights ---------------------------------------------------------------------------------------------------
    @property
    def weight(self) -> float:
        """Return per cent of the requests that the candidate is given now."""
        return 0.0 if self.breached is not None or self.candidate.target is None else self.policy.weight

    def breach(self, found: Breach) -> None:
        """Give the candidate no more requests."""
        self.breached = found
        self._share()
        log.warning(
            "rollout '%s' of '%s': the candidate gets no more requests: %s",
            self.policy.rollout,
            self.identifier,
            found.reason,
        )

    def _share(self) -> None:
        self.split.set_weight(self.weight)

    # -- once a second ---------------------------------------------------------------------------------------------
    def tick(self) -> None:
        for arm in self._arms.values():
            arm.figures.tick()

    def close(self) -> None:
        """The rollout is over, or the model is unloaded."""
        self.detach()

    # -- what it tells ---------------------------------------------------------------------------------------------
    def told(self) -> JsonObject:
        """Return what the live feed and the route of the control API say."""
        breach = self.breached
        return {
            "model": self.identifier.name,
            "namespace": self.identifier.namespace,
            "rollout": self.policy.rollout,
            "release": self.release,
            "weight": self.weight,
            "asked_weight": self.policy.weight,
            "breach": breach and breach._asdict(),
            "arms": {name: _arm_told(arm) for name, arm in self._arms.items()},
            "shadow": None,
            "guardrails": [],
        }


def _arm_told(arm: Arm) -> JsonObject:
    figures = arm.figures
    return {
        "version": str(arm.version or ""),
        "remote": arm.remote.url if arm.remote is not None else "",
        "serves": arm.target is not None,
        "requests": figures.requests,
        "errors": figures.errors,
        "withdrawn": figures.withdrawn,
        "latency": _histogram_told(figures.latency),
    }


def _histogram_told(histogram: Histogram) -> JsonObject:
    return {"total": histogram.total, "sum_ns": histogram.sum_ns, "counts": histogram.counts}
