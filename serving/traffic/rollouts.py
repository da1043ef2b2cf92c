"""All rollouts of one server, and what they share: the clock of their guardrails, and the headers that clients are known by."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from repository.config.traffic import TrafficPolicy
from serving.cli.options import Options
from serving.core.errors import invalid, safely
from serving.core.in_flight import InFlightRequest
from serving.core.model_identifier import ModelIdentifier
from serving.traffic.breaches import Breaches
from serving.traffic.client_headers import ClientHeaders
from serving.traffic.rollout import Rollout, RolloutServices

TICK_S = 1.0


class Rollouts:
    """Used on the event loop's thread."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._breaches = Breaches(options.traffic_state)
        # Renders the server's metrics; set by the frontend that serves them.
        self.page: Callable[[], str] = str
        self._services = RolloutServices(self._breaches, lambda: self.page(), _fetch_nothing)
        self._rollouts: dict[ModelIdentifier, Rollout] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []
        self.headers: frozenset[str] = frozenset()  # by which clients are told apart, in lower case

    def __iter__(self) -> Iterator[Rollout]:
        return iter(list(self._rollouts.values()))

    def of(self, identifier: ModelIdentifier) -> Rollout | None:
        return self._rollouts.get(identifier)

    def on_headers(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `headers` are others."""
        self._listeners.append(listener)

    def note_headers(self, request: InFlightRequest, headers: Mapping[str, str]) -> None:
        """Let a client's request carry those of its headers that rollouts ask for."""
        noted = {name: headers[name] for name in self.headers if name in headers}
        if noted:
            request.observe(ClientHeaders(noted))

    # -- begun, changed, ended -------------------------------------------------------------------------------------
    def check(self, policy: TrafficPolicy | None) -> None:
        """Raise INVALID_ARG where a policy asks for what this server may not do."""

    def settle(self, identifier: ModelIdentifier, policy: TrafficPolicy | None, release: int | None) -> Rollout | None:
        """Return the rollout of a model that serves with this policy from here on: the one that there is where its name is the
        same. None without a policy."""
        rollout = self._rollouts.get(identifier)
        if rollout is not None and (policy is None or rollout.policy.rollout != policy.rollout):
            self.end(identifier)
            rollout = None
        if policy is None or self._breaches.of(str(identifier), policy.rollout) is None:
            self._breaches.forget(str(identifier))
        if policy is not None:
            if rollout is None:
                rollout = self._rollouts[identifier] = Rollout(identifier, policy, self._services)
            rollout.configure(policy, release)
        self._follow()
        return rollout

    def end(self, identifier: ModelIdentifier) -> None:
        """End a model's rollout, if it has one."""
        rollout = self._rollouts.pop(identifier, None)
        if rollout is not None:
            rollout.close()
        self._follow()

    def _follow(self) -> None:
        """See to the clock and to the headers."""
        policies = [rollout.policy for rollout in self._rollouts.values()]
        names = frozenset(one.sticky.name for one in policies if one.sticky is not None and one.sticky.by == "header")
        if names != self.headers:
            self.headers = names
            for listener in self._listeners:
                listener()
        if self._rollouts and self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)
        elif not self._rollouts and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- once a second ---------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        for rollout in self._rollouts.values():
            safely("looking at a rollout", rollout.tick)


async def _fetch_nothing(url: str) -> bytes:
    raise invalid(f"this server may not ask '{url}': --traffic-remotes lists what it may")
