"""One model's rollout: its policy, its two arms, and how requests are shared between them.

The model's lifecycle makes it, changes it in place and ends it.

What is counted, and a breach, belong to the policy's name: they go on while that stays, whatever else of the policy changes. An
arm that comes to mean another version counts from zero. A breach keeps the candidate without requests for as long as the policy
has its name.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from repository.config.traffic import Remote, TrafficPolicy
from repository.core.histogram import Histogram
from serving.core.model_identifier import ModelIdentifier
from serving.traffic.arms import CANDIDATE, STABLE, Arm, Follower, Target
from serving.traffic.breaches import Breach, Breaches
from serving.traffic.figures import ArmFigures
from serving.traffic.guardrails import BREACHED, Guardrails, GuardrailState, Values
from serving.traffic.prometheus_values import PrometheusValues
from serving.traffic.split import TrafficSplit

log = logging.getLogger(__name__)

JsonObject = dict[str, object]


class RolloutServices(NamedTuple):
    """What rollouts use of their server. page: renders its metrics. fetch: gets a URL of another server, where it may."""

    breaches: Breaches
    page: Callable[[], str]
    fetch: Callable[[str], Awaitable[bytes]]


class Rollout:
    """Used on the event loop's thread."""

    def __init__(self, identifier: ModelIdentifier, policy: TrafficPolicy, services: RolloutServices) -> None:
        self.identifier = identifier
        self.policy = policy
        self.release: int | None = None  # that the policy belongs to
        self._services = services
        self.breached = services.breaches.of(str(identifier), policy.rollout)
        self._arms = {name: self._arm(name, 0) for name in (STABLE, CANDIDATE)}
        self.split = TrafficSplit(policy.rollout, Follower(self.stable), Follower(self.candidate))
        self._values = PrometheusValues(services.page, services.fetch)
        self._guardrails = self._new_guardrails()
        self._states: list[GuardrailState] = []  # as they were judged last; after a breach, as they stood then
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
        if policy.window_s != self.policy.window_s:
            for arm in self._arms.values():
                arm.figures.set_window(int(policy.window_s))
        self.policy, self.release = policy, release
        self._states = []
        self.split.set_sticky(policy.sticky)

    def attach(self, default: int, targets: Mapping[int, Target]) -> None:
        """Say which version answers where none is named, and what takes the requests of each version from here on."""
        versions = {STABLE: default, CANDIDATE: self.policy.candidate}
        others = False
        for name, version in versions.items():
            remote = self._remote(name)
            number = version if remote is None and isinstance(version, int) else 0
            if (self._arms[name].version, self._arms[name].remote) != (number, remote):
                self._arms[name] = self._arm(name, number)
                others = True
            self._arms[name].target = targets.get(number)
        if others:
            self.split.set_arms(Follower(self.stable), Follower(self.candidate))
            self._guardrails = self._new_guardrails()
        elif self._guardrails.policy is not self.policy:
            self._guardrails.configure(self.policy, self._read_values())
        self._share()

    def detach(self) -> None:
        """Nothing of the model serves."""
        for arm in self._arms.values():
            arm.target = None

    def _new_guardrails(self) -> Guardrails:
        return Guardrails(self.policy, self.stable.figures, self.candidate.figures, None, self._read_values())

    def _read_values(self) -> Mapping[int, Values]:
        """Have the metrics read that guardrails ask for."""
        labels = {"model": self.identifier.name}
        arms = {name: (labels | {"version": str(arm.version)}, arm.figures) for name, arm in self._arms.items()}
        return self._values.begin(self.policy.guardrails, arms)

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

    def share(self, arm: Arm) -> float:
        """Return per cent of the requests that an arm is given now."""
        return self.weight if arm is self.candidate else 100.0 - self.weight

    def breach(self, guardrail: int, reason: str) -> None:
        """Give the candidate no more requests. guardrail: its place in the policy."""
        self.breached = Breach(self.policy.rollout, guardrail, reason, time.time())
        self._share()  # at once: the disk may be slow
        self.breached = self._services.breaches.keep(str(self.identifier), self.policy.rollout, guardrail, reason)
        name = self.policy.rollout
        log.warning("rollout '%s' of '%s': the candidate gets no more requests: %s", name, self.identifier, reason)

    def _share(self) -> None:
        self.split.set_weight(self.weight)

    # -- once a second ---------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """Judge the candidate."""
        for arm in self._arms.values():
            arm.figures.tick()
        if self.breached is not None and self._states:
            return
        self._states = self._guardrails.evaluate()
        if self.breached is None:
            for place, state in enumerate(self._states):
                if state.state == BREACHED:
                    self.breach(place, state.detail)
                    return
        elif self.breached.guardrail < len(self._states):
            place = self.breached.guardrail
            self._states[place] = self._states[place]._replace(state=BREACHED, detail=self.breached.reason)

    def close(self) -> None:
        """The rollout is over, or the model is unloaded."""
        self.detach()
        self._values.close()

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
            "breach": breach and {"guardrail": breach.guardrail, "reason": breach.reason, "at": breach.at},
            "arms": {name: _arm_told(arm) for name, arm in self._arms.items()},
            "shadow": None,
            "guardrails": [state._asdict() for state in self._states],
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
