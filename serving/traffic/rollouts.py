"""All rollouts of one server. They share the clock of their guardrails and the names of sticky headers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Remote, TrafficPolicy
from serving.cli.options import Options
from serving.core.client_headers import ClientHeaders
from serving.core.errors import safely
from serving.core.in_flight import InFlightRequest
from serving.core.model_identifier import ModelIdentifier
from serving.extensions.classification import Labels
from serving.resources.request_memory import RequestMemory
from serving.traffic.arms import CANDIDATE, STABLE
from serving.traffic.breaches import Breaches
from serving.traffic.remotes.allow_list import RemoteAllowList
from serving.traffic.remotes.fetch import RemotePages
from serving.traffic.remotes.remote_model import RemoteModel
from serving.traffic.rollout import Connected, Rollout, RolloutServices
from serving.traffic.stable_memory import StableMemory

log = logging.getLogger(__name__)

TICK_S = 1.0
LOOKED_AT = 10  # rollouts that are evaluated in one turn of the loop


class Rollouts:
    """Used on the event loop's thread."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop, memory: Callable[[], RequestMemory]) -> None:
        """memory: returns the memory of the server's requests."""
        self._loop = loop
        self._memory = memory
        self._allow_list = RemoteAllowList(options.traffic_remotes)
        self._pages: RemotePages | None = None
        # Former arms on other servers, which finish their requests and their open sequences.
        self._leaving: dict[asyncio.Task[None], tuple[ModelIdentifier, RemoteModel]] = {}
        self._breaches = Breaches(options.traffic_state)
        # Renders the server's metrics, in pieces; set by the frontend that serves them.
        self.page: Callable[[ModelIdentifier], Iterable[str]] = lambda model: ()
        self._stable = StableMemory(options.traffic_state)
        self._services = RolloutServices(
            self._breaches, self._stable, lambda model: self.page(model), self._fetch, memory
        )
        self._rollouts: dict[ModelIdentifier, Rollout] = {}
        self._looking: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.headers: frozenset[str] = frozenset()  # the sticky headers of all policies, in lower case

    def __iter__(self) -> Iterator[Rollout]:
        return iter(list(self._rollouts.values()))

    def of(self, identifier: ModelIdentifier) -> Rollout | None:
        return self._rollouts.get(identifier)

    def on_headers(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `headers` change."""
        self._listeners.append(listener)

    def note_headers(self, request: InFlightRequest, headers: Mapping[str, str]) -> None:
        """Keep the sticky headers of a client's request."""
        noted = {name: headers[name] for name in self.headers if name in headers}
        if noted:
            request.observe(ClientHeaders(noted))

    # -- begin, change, end ----------------------------------------------------------------------------------------
    async def prepare(
        self, identifier: ModelIdentifier, policy: TrafficPolicy, config: ModelConfig, labels: Callable[[], Labels]
    ) -> dict[str, Connected]:
        """Return the arms of a policy that are on other servers. Call this before the policy takes effect.

        config: the completed configuration of the default version. labels: returns its names of classes. Raises ServingError if
        this server may not call the other server, or if the local model cannot have an arm there.
        """
        allowed = {url: await asyncio.to_thread(self._allow_list.of, url) for url in policy.urls}
        seen = _seen(config)
        rollout = self._rollouts.get(identifier)
        found: dict[str, Connected] = {}
        for name, arm in ((STABLE, policy.stable), (CANDIDATE, policy.candidate)):
            if isinstance(arm, Remote):
                known = rollout.connected.get(name) if rollout is not None else None
                access = allowed[arm.url]
                if known is None or (known.remote, known.access, known.seen) != (arm, access, seen):
                    known = Connected(arm, access, seen, RemoteModel(arm, config, access, self._memory(), labels))
                found[name] = known
        return found

    def apply_policy(
        self,
        identifier: ModelIdentifier,
        policy: TrafficPolicy | None,
        release: int | None,
        default: int,
        connected: Mapping[str, Connected],
    ) -> list[InFlightRequest]:
        """Apply a policy to a model, or end its rollout if it is None. The rollout continues if the policy has the same name.

        default: the version that answers without a policy. If a rollout ends, return the requests that waited for its
        candidate, for the caller to submit again; none if the candidate has become the default."""
        key = str(identifier)
        rollout = self._rollouts.get(identifier)
        before = rollout.connected if rollout is not None else {}
        left: list[InFlightRequest] = []
        if policy is None or self._breaches.of(key, policy.rollout) is None:
            self._breaches.forget(key)
        if rollout is not None and (policy is None or rollout.policy.rollout != policy.rollout):
            log.info("rollout '%s' of '%s' is over", rollout.policy.rollout, identifier)
            if rollout.candidate.version != default:
                left = rollout.candidate.take_back()
            self._rollouts.pop(identifier).close()
            self._stable.forget(key)
            rollout = None
        if policy is not None:
            if rollout is None:
                rollout = self._rollouts[identifier] = Rollout(identifier, policy, self._services)
            rollout.configure(policy, release, connected)
        self._leave(identifier, before, connected)
        self._follow()
        return left

    def discard(self, identifier: ModelIdentifier, connected: Mapping[str, Connected]) -> None:
        """Close the remote arms that were prepared for a policy that does not take effect."""
        rollout = self._rollouts.get(identifier)
        self._leave(identifier, connected, rollout.connected if rollout is not None else {})

    def end(self, identifier: ModelIdentifier) -> None:
        """End the rollout of a model that is unloaded, if it has one. Its breach is kept."""
        rollout = self._rollouts.pop(identifier, None)
        if rollout is not None:
            rollout.close()
            self._leave(identifier, rollout.connected, {})
        for model in self.elsewhere(identifier):
            model.abandon_sequences()
        self._follow()

    def elsewhere(self, identifier: ModelIdentifier) -> list[RemoteModel]:
        """Return the models on other servers that may have sequences of this model open: the arms and the former arms."""
        rollout = self._rollouts.get(identifier)
        arms = rollout.connected.values() if rollout is not None else ()
        leaving = [model for of, model in self._leaving.values() if of == identifier]
        return [*(one.model for one in arms), *leaving]

    def busy(self) -> bool:
        """Return whether a request is under way on another server."""
        connected = [one.model for rollout in self for one in rollout.connected.values()]
        return any(model.in_flight for model in (*connected, *(model for _, model in self._leaving.values())))

    async def close(self) -> None:
        """End all rollouts, and close every connection."""
        await self._stable.close()
        for rollout in self:
            self.end(rollout.identifier)
        for _, model in self._leaving.values():
            model.abandon_sequences()
        await asyncio.gather(*self._leaving)
        if self._pages is not None:
            await self._pages.close()
        await asyncio.to_thread(self._breaches.close)

    def _leave(self, identifier: ModelIdentifier, left: Mapping[str, Connected], kept: Mapping[str, Connected]) -> None:
        """Close the models in `left` but not in `kept`, after they have answered their requests and ended their sequences."""
        there = [one.model for one in kept.values()]
        for one in left.values():
            if one.model not in there:
                task = self._loop.create_task(one.model.drain())
                self._leaving[task] = identifier, one.model
                task.add_done_callback(self._leaving.pop)

    async def _fetch(self, url: str) -> bytes:
        """Get a page of a listed server."""
        if self._pages is None:
            self._pages = RemotePages(self._allow_list, self._memory())
        return await self._pages.fetch(url)

    def _follow(self) -> None:
        """Start or stop the clock, and update the headers."""
        policies = [rollout.policy for rollout in self._rollouts.values()]
        names = frozenset(one.sticky.name for one in policies if one.sticky is not None and one.sticky.by == "header")
        if names != self.headers:
            self.headers = names
            for listener in self._listeners:
                listener()
        if self._rollouts and self._looking is None:
            self._looking = self._loop.create_task(self._look())
        elif not self._rollouts and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    # -- once a second ---------------------------------------------------------------------------------------------
    async def _look(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for place, rollout in enumerate(list(self), 1):
                if self.of(rollout.identifier) is rollout:
                    safely("looking at a rollout", rollout.tick)
                if place % LOOKED_AT == 0:
                    await asyncio.sleep(0)  # lets requests through, because many rollouts take long to evaluate
            self._breaches.tick()
            self._stable.tick(self._loop)


def _seen(config: ModelConfig) -> bytes:
    """Return the parts of a configuration that affect requests to a model on another server."""
    seen = ModelConfig()
    seen.CopyFrom(config)
    for field in ("parameters", "version_policy", "instance_group", "dynamic_batching"):
        seen.ClearField(field)
    found: bytes = seen.SerializeToString(deterministic=True)
    return found
