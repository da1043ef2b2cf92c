"""The rate limiter: an instance of any model executes only if the resources that its instance group names are free.

Among instances that wait for the same resource, the one with the lowest product of executions and priority goes first, so that
priority 2 gets half the chances of priority 1. An instance that was idle, or is new, does not catch up on missed turns.
Source: Triton, docs/user_guide/rate_limiter.md and ModelRateLimiter in model_config.proto.

An instance waits only for resources that other instances hold, or that are reserved for an earlier waiter. Free resources are
reserved for a waiter that needs more than are free. Otherwise smaller demands would take them each time, and the waiter would
starve. Nothing is reserved for a waiter if a model that calls other models holds the missing resources: its call may need an
instance that would have to wait, which would be a deadlock.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from serving.core.devices import Device
from serving.core.errors import invalid
from serving.core.waiters import Waiters

ANYWHERE = "global"
Key = tuple[str, str]  # (resource, its device or ANYWHERE)


class Demand(NamedTuple):
    """The resources of one execution, and the priority of its instance group."""

    resources: tuple[tuple[Key, int], ...] = ()
    priority: int = 1


NO_DEMAND = Demand()


def demand_of(group: ModelInstanceGroup, device: Device) -> Demand:
    """Return the demand of the instances of a group on one device."""
    resources = tuple(
        ((one.name, ANYWHERE if getattr(one, "global") else str(device)), one.count)
        for one in group.rate_limiter.resources
    )
    return Demand(resources, group.rate_limiter.priority or 1)


class RateLimiter:
    """Grants resources to holders, which are instances or other hashable objects. Used on the event loop's thread only.

    limits: (resource, copies, device number or None for each device) from --rate-limit-resource. A resource that is not
    listed has as many copies as its most demanding instance needs. call_soon: the event loop's method.
    """

    def __init__(
        self, limits: Iterable[tuple[str, int, int | None]], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._limits = list(limits)
        self._demands: dict[object, Demand] = {}
        self._turns: dict[object, int] = {}  # the product of executions and priority; the lowest goes first
        self._used: Counter[Key] = Counter()
        self._granted: dict[object, Demand] = {}
        self._models: dict[object, str] = {}  # the models of the holders
        self._callers: set[str] = set()  # models that call others while they execute
        self._waiters: Waiters[object] = Waiters(self._may_go, call_soon, self._turns.__getitem__)

    def register(self, holder: object, demand: Demand, model: str = "") -> None:
        """Add an instance of a model. Raises INVALID_ARG if a resource is global for one model and per device for another, or
        if an instance needs more of a resource than there is."""
        for (name, place), count in demand.resources:
            for other in self._demands.values():
                if any(
                    known == name and (where == ANYWHERE) != (place == ANYWHERE)
                    for (known, where), _ in other.resources
                ):
                    raise invalid(f"rate limiter resource '{name}' is global for one model and not global for another")
            limit = self._limit((name, place))
            if limit is not None and count > limit:
                raise invalid(
                    f"an instance needs {count} of rate limiter resource '{name}', but there are only {limit}"
                )
        self._demands[holder] = demand
        self._models[holder] = model
        self._turns[holder] = 0
        self._waiters.ask()  # a resource may have more copies than before

    def unregister(self, holder: object) -> None:
        """Forget an instance. The resources that the instance holds stay counted until they are released."""
        self._waiters.withdraw(holder)
        for table in (self._demands, self._turns):
            table.pop(holder, None)
        model = self._models.pop(holder, "")
        if model not in self._models.values():
            self._callers.discard(model)

    def note_caller(self, model: str) -> None:
        """Note that a model calls another one. Until the call is answered, the model may be unable to release its resources."""
        if model not in self._callers:
            self._callers.add(model)
            self._waiters.ask()

    def acquire(self, holder: object, resume: Callable[[], None]) -> bool:
        """Take the holder's resources for one execution, and return whether it has them. If the holder must wait, `resume` is
        called once when the holder may go. The holder must then call `acquire` again if it still has a batch to execute."""
        if holder not in self._waiters:
            self._turns[holder] = max(self._turns[holder], self._earliest_turn(holder))
        if not self._may_go(holder):
            self._waiters.wait(holder, resume)
            return False
        demand = self._demands[holder]
        self._used.update(dict(demand.resources))
        self._granted[holder] = demand
        self._turns[holder] += demand.priority
        self._waiters.withdraw(holder)
        return True

    def release(self, holder: object) -> None:
        """Release the holder's resources. Waiters for these resources are resumed soon."""
        self._used.subtract(dict(self._granted.pop(holder, NO_DEMAND).resources))
        self._waiters.ask()

    def _may_go(self, holder: object) -> bool:
        """Return whether a holder's resources are free, and none of them is reserved for a waiter with an earlier turn."""
        if not self._free(self._demands[holder]):
            return False
        waits = holder in self._waiters
        kept: set[Key] = set()  # resources of earlier waiters that go next, or that will get their resources
        for other in self._waiters:
            if other == holder or (not waits and self._turns[other] >= self._turns[holder]):
                break
            keys = _keys(self._demands[other])
            goes = kept.isdisjoint(keys) and self._free(self._demands[other])
            if goes or self._comes_free(other):
                kept |= keys
        return not kept or kept.isdisjoint(_keys(self._demands[holder]))

    def _comes_free(self, holder: object) -> bool:
        """Return whether a waiter's resources will become free even if no other waiter executes: no model that calls others
        holds any of them."""
        keys = _keys(self._demands[holder])
        return not any(
            self._models.get(other) in self._callers and not keys.isdisjoint(_keys(demand))
            for other, demand in self._granted.items()
        )

    def _earliest_turn(self, holder: object) -> int:
        """Return the turn of a holder that was idle: the lowest turn with which a competing holder began its last execution."""
        keys = _keys(self._demands[holder])
        active = [
            other
            for other in (*self._waiters, *self._granted)
            if other in self._demands and not keys.isdisjoint(_keys(self._demands[other]))
        ]
        return min((self._turns[other] - self._demands[other].priority for other in active), default=0)

    def _free(self, demand: Demand) -> bool:
        return all(self._used[key] + count <= self._copies(key) for key, count in demand.resources)

    def _copies(self, key: Key) -> int:
        limit = self._limit(key)
        if limit is not None:
            return limit
        return max(count for demand in self._demands.values() for known, count in demand.resources if known == key)

    def _limit(self, key: Key) -> int | None:
        """Return how many copies of a resource the command line sets, for its device or else for every device, or None."""
        name, place = key
        number = place.partition(":")[2]
        found = None
        for limited, copies, device in self._limits:
            if limited == name and (device is None or str(device) == number):
                found = copies if device is not None or found is None else found
        return found


def _keys(demand: Demand) -> set[Key]:
    return {key for key, _ in demand.resources}
