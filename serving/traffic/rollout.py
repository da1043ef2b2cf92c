"""One model's rollout: its policy, its two arms, and how requests are divided between them.

The model's lifecycle creates, changes and ends the rollout.

Counts and a breach belong to the name of the policy, and stay when the rest of the policy changes. An arm that gets another
version counts from zero. After a breach, the candidate gets no requests until the policy has another name.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from repository.config.traffic import Remote, TrafficPolicy
from serving.core.datatypes import BY_CONFIG
from serving.core.errors import safely, storable
from serving.core.model_identifier import ModelIdentifier
from serving.core.tensor_check import wire_shape
from serving.resources.request_memory import RequestMemory
from serving.traffic.arms import CANDIDATE, STABLE, Arm, ArmCounter, Target
from serving.traffic.breaches import Breach, Breaches
from serving.traffic.figures import ArmFigures, ShadowFigures, rounded_s
from serving.traffic.guardrails import BREACHED, Guardrails, GuardrailState, Values
from serving.traffic.mirror import Mirror, MirroredArm
from serving.traffic.prometheus_values import PrometheusValues
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.remote_model import RemoteModel
from serving.traffic.split import TrafficSplit
from serving.traffic.stable_memory import Memory, StableMemory

log = logging.getLogger(__name__)

JsonObject = dict[str, object]


class RolloutServices(NamedTuple):
    """The parts of the server that rollouts use. stable: figures of stable arms, which survive a restart. page: renders the
    server's metrics of one model, in pieces. fetch: gets a URL of a listed server. memory: returns the server's request
    memory."""

    breaches: Breaches
    stable: StableMemory
    page: Callable[[ModelIdentifier], Iterable[str]]
    fetch: Callable[[str], Awaitable[bytes]]
    memory: Callable[[], RequestMemory]


class Connected(NamedTuple):
    """A model on another server, ready to answer. seen: the parts of the local configuration that affect requests to it."""

    remote: Remote
    access: RemoteAccess
    seen: bytes
    model: RemoteModel


class Rollout:
    """Used on the event loop's thread."""

    def __init__(self, identifier: ModelIdentifier, policy: TrafficPolicy, services: RolloutServices) -> None:
        self.identifier = identifier
        self.policy = policy
        self.release: int | None = None  # the release of the policy
        self._services = services
        self.breached = services.breaches.of(str(identifier), policy.rollout)
        self._arms = {name: self._arm(name, 0) for name in (STABLE, CANDIDATE)}
        self._shadow_figures = ShadowFigures(policy.window_s)
        self.mirror: Mirror | None = None
        self._mirrored: list[frozenset[str] | None] = []  # the outputs of both arms when the mirror was made
        self.connected: dict[str, Connected] = {}  # the models on other servers, by the names of their arms
        self.split = TrafficSplit(policy.rollout, ArmCounter(self.stable), ArmCounter(self.candidate))
        self._values = PrometheusValues(lambda: services.page(identifier), services.fetch)
        self._guardrails = self._new_guardrails()
        # The states at the last evaluation. After a breach they no longer change.
        self._states: list[GuardrailState] = []
        self._logged = ""  # the rollout's last line in the log
        self._differs = ""  # how the candidate's declared tensors differ from stable's
        self.configure(policy, None)

    # -- arms ------------------------------------------------------------------------------------------------------
    @property
    def stable(self) -> Arm:
        return self._arms[STABLE]

    @property
    def candidate(self) -> Arm:
        return self._arms[CANDIDATE]

    def configure(
        self, policy: TrafficPolicy, release: int | None, connected: Mapping[str, Connected] = MappingProxyType({})
    ) -> None:
        """Replace the policy by another of the same name. Requests under way stay with their arm.

        connected: the arms on other servers."""
        if (policy.window_s, policy.weight) != (self.policy.window_s, self.policy.weight):
            # A window must have a single weight: otherwise requests from different times would be compared.
            for figures in self._all_figures():
                figures.set_window(policy.window_s)
            self._note_stable(at_once=True)  # stable may get fewer requests from now on
        self.policy, self.release, self.connected = policy, release, dict(connected)
        self._states = []
        self.split.set_sticky(policy.sticky)

    def attach(self, default: int, configs: Mapping[int, ModelConfig], targets: Mapping[int, Target]) -> None:
        """Set the default version and the model of each version. configs: the configurations of the versions."""
        versions = {STABLE: default, CANDIDATE: self.policy.candidate}
        others = False
        for name, version in versions.items():
            remote = self._remote(name)
            number = version if remote is None and isinstance(version, int) else 0
            if (self._arms[name].version, self._arms[name].remote) != (number, remote):
                self._arms[name] = self._arm(name, number)
                others = True
            connected = self.connected.get(name)
            self._arms[name].target = targets.get(number) if connected is None else connected.model
        if others:
            self._shadow_figures = ShadowFigures(self.policy.window_s)
            self.split.set_arms(ArmCounter(self.stable), ArmCounter(self.candidate))
            self._guardrails = self._new_guardrails()
        elif self._guardrails.policy is not self.policy:
            self._guardrails.configure(self.policy, self._read_values())
        safely("configuring the mirror of a rollout", self._configure_mirror, configs[default], others)
        candidate = configs.get(self.candidate.version)
        self._differs = "" if candidate is None else _difference(configs[default], candidate)
        self._share()
        if self.breached is not None:
            self._states = self._evaluate()  # before the first report
        self._log()

    def _new_guardrails(self) -> Guardrails:
        figures = self.stable.figures, self.candidate.figures, self._shadow_figures
        guardrails = Guardrails(self.policy, *figures, self._read_values())
        known = self._services.stable.of(str(self.identifier), self.policy.rollout, self._words())
        if known is not None:
            guardrails.recall(known.stable, known.mirrored)
        return guardrails

    def _note_stable(self, *, at_once: bool = False) -> None:
        """Keep the figures of the stable arm for the next process of this server."""
        stable, mirrored = self._guardrails.last_windows()
        if stable is not None or mirrored is not None:
            memory = Memory(self.policy.rollout, self._words(), stable, mirrored)
            self._services.stable.note(str(self.identifier), memory, at_once=at_once)

    def _words(self) -> tuple[str, str]:
        return self.stable.words, self.candidate.words

    def _configure_mirror(self, config: ModelConfig, others: bool) -> None:
        """Create, change or close the mirror by the policy. others: whether an arm was replaced after the mirror's creation."""
        shadow = self.policy.shadow
        stable, candidate = (
            MirroredArm(arm.submit, arm.pending, _outputs(arm), arm.needs_eviction) for arm in self._arms.values()
        )
        outputs = [stable.outputs, candidate.outputs]
        if self.mirror is not None and (shadow is None or others or self._mirrored != outputs):
            self.mirror.close()
            self.mirror = None
        if shadow is None:
            return
        if self.mirror is None:
            memory = self._services.memory()
            self.mirror = Mirror(shadow, config, stable, candidate, self._shadow_figures, memory)
            self._mirrored = outputs
        else:
            self.mirror.configure(shadow, config)

    def _all_figures(self) -> list[ArmFigures | ShadowFigures]:
        return [*(arm.figures for arm in self._arms.values()), self._shadow_figures]

    def _read_values(self) -> Mapping[int, Values]:
        """Begin to read the metrics of the guardrails."""
        labels = {"model": self.identifier.name}
        arms = {name: (labels | {"version": str(arm.version)}, arm.figures) for name, arm in self._arms.items()}
        return self._values.begin(self.policy, arms)

    def _arm(self, name: str, version: int) -> Arm:
        return Arm(name, version, self._remote(name), ArmFigures(self.policy.window_s))

    def _remote(self, name: str) -> Remote | None:
        arm = self.policy.stable if name == STABLE else self.policy.candidate
        return arm if isinstance(arm, Remote) else None

    # -- weights ---------------------------------------------------------------------------------------------------
    @property
    def weight(self) -> float:
        """The percentage of requests that the candidate gets now."""
        return 0.0 if self.breached is not None or self.candidate.target is None else self.policy.weight

    def share(self, arm: Arm) -> float:
        """Return the percentage of requests that an arm gets now."""
        return self.weight if arm is self.candidate else 100.0 - self.weight

    def breach(self, guardrail: int, reason: str) -> None:
        """Give the candidate no more requests. guardrail: the index of the breached guardrail in the policy."""
        name = self.policy.rollout
        self.breached = Breach(name, guardrail, storable(reason), time.time())
        self._share()  # before the breach is written, because the disk may be slow
        self._services.breaches.keep(str(self.identifier), self.breached)
        self._log()

    def _share(self) -> None:
        """Divide and mirror requests by the present weight."""
        self.split.set_weight(self.weight)
        taken_out = self.breached is not None or self.candidate.target is None
        self.split.set_mirror(None if taken_out else self.mirror)
        if not self.weight:
            for request in self.candidate.take_back():
                request.submit_to(self.split.submit)

    # -- once a second ---------------------------------------------------------------------------------------------
    def tick(self) -> None:
        for figures in self._all_figures():
            figures.tick()
        if self.mirror is not None:
            self.mirror.mismatches.tick()
        if self.breached is not None and self._states:
            return
        self._states = self._evaluate()
        self._note_stable()
        if self.breached is None:
            for place, state in enumerate(self._states):
                if state.state == BREACHED:
                    self.breach(place, state.detail)
                    return

    def _evaluate(self) -> list[GuardrailState]:
        """Return the states of the guardrails. A guardrail that was breached before a restart stays breached."""
        states = self._guardrails.evaluate()
        if self.breached is not None and self.breached.guardrail < len(states):
            place = self.breached.guardrail
            states[place] = states[place]._replace(state=BREACHED, detail=self.breached.reason)
        return states

    def close(self) -> None:
        """End the rollout."""
        for arm in self._arms.values():
            arm.target = None
        self._values.close()
        if self.mirror is not None:
            self.mirror.close()

    # -- reports ---------------------------------------------------------------------------------------------------
    def _log(self) -> None:
        """Log which requests the candidate gets, if that has changed."""
        stable, candidate, asked = self.stable.words, self.candidate.words, f"{self.policy.weight:g} %"
        line = f"{candidate} gets {asked} of the requests that name no version, {stable} the others"
        if self.policy.shadow is not None:
            line += f"; {self.policy.shadow.share:g} % of those are mirrored to {candidate}"
        if self._differs:
            line += f". Requests that one takes the other may refuse: {candidate} has {self._differs}"
        if self.breached is not None:
            line = f"{candidate} gets no more requests (the policy says {asked}): {self.breached.reason}"
            line += ". A policy with another 'rollout' name starts again"
        if line != self._logged:
            self._logged = line
            level = logging.WARNING if self.breached is not None or self._differs else logging.INFO
            log.log(level, "rollout '%s' of '%s': %s", self.policy.rollout, self.identifier, line)

    def report(self) -> JsonObject:
        """Return the rollout as the live feed and the control API show it."""
        breach = self.breached
        return {
            "model": self.identifier.name,
            "namespace": self.identifier.namespace,
            "rollout": self.policy.rollout,
            "release": self.release,
            "weight": self.weight,
            "asked_weight": self.policy.weight,
            "breach": breach and {"guardrail": breach.guardrail, "reason": storable(breach.reason), "at": breach.at},
            "arms": {name: _arm_report(arm, self.policy.window_s) for name, arm in self._arms.items()},
            "shadow": None if self.mirror is None else _shadow_report(self._shadow_figures),
            "guardrails": [{**state._asdict(), "detail": storable(state.detail)} for state in self._states],
        }


def _arm_report(arm: Arm, window_s: float) -> JsonObject:
    figures = arm.figures
    return {
        "version": str(arm.version or ""),
        "remote": arm.remote.url if arm.remote is not None else "",
        "serves": arm.target is not None,
        "requests": figures.requests,
        "errors": figures.errors,
        "withdrawn": figures.withdrawn,
        "latency": figures.latency.as_json(),
        "window": _window_report(figures, window_s),
    }


def _window_report(figures: ArmFigures, window_s: float) -> JsonObject:
    """Return the window that guardrails evaluate. window_s: the length of a full window."""
    window = figures.window()
    latency = {"total": sum(window.latency.values()), "sum_ns": window.sum_ns, "counts": window.latency}
    return {
        "seconds": rounded_s(figures.window_s, window_s),
        "requests": window.requests,
        "errors": window.errors,
        "latency": latency,
    }


def _outputs(arm: Arm) -> frozenset[str] | None:
    """Return the outputs that an arm can give, or None for all outputs of the model."""
    return arm.target.outputs if isinstance(arm.target, RemoteModel) else None


def _shadow_report(figures: ShadowFigures) -> JsonObject:
    return {
        "compared": figures.compared,
        "disagreed": figures.disagreed,
        "mismatched": figures.mismatched,
        "top1_compared": figures.top1_compared,
        "top1_agreed": figures.top1_agreed,
        "max_absolute": figures.max_absolute,
        "mean_absolute": figures.sum_absolute / max(1, figures.compared),
        "max_relative": figures.max_relative,
        "failed": figures.failed,
        "dropped": dict(figures.dropped),
        "trouble": figures.trouble and {"reason": storable(figures.trouble[0]), "at": figures.trouble[1]},
        "stable_latency": figures.stable_latency.as_json(),
        "candidate_latency": figures.candidate_latency.as_json(),
    }


def _difference(stable: ModelConfig, candidate: ModelConfig) -> str:
    """Return, as a clause, the first reason why the candidate may refuse requests that stable takes; "" if there is none.
    It lacks a tensor of stable, declares one more narrowly, or requires an input that stable does not have."""
    for kind, known, found in (
        ("input", _declared(stable, stable.input), _declared(candidate, candidate.input)),
        ("output", _declared(stable, stable.output), _declared(candidate, candidate.output)),
    ):
        for name, (datatype, shape) in known.items():
            other, dims = found.get(name, ("", []))
            if not other:
                return f"no {kind} '{name}'"
            wider = len(dims) == len(shape) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))
            if other != datatype or not wider:
                return f"{kind} '{name}' as {other} {dims}, not {datatype} {shape}"
    names = {one.name for one in stable.input}
    more = next((one.name for one in candidate.input if not one.optional and one.name not in names), "")
    return f"an input '{more}' that is not optional" if more else ""


def _declared(config: ModelConfig, tensors: Iterable[ModelInput | ModelOutput]) -> dict[str, tuple[str, list[int]]]:
    return {one.name: (BY_CONFIG[one.data_type].name, wire_shape(one, config)) for one in tensors}
