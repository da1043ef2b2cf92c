"""The rate limiter: an instance executes only while the resources that its group names are free; it works across models.

Among instances that wait, the one with the least executions times priority goes first, so that priority 2 gets half the
chances of priority 1. Source: Triton, docs/user_guide/rate_limiter.md and ModelRateLimiter in model_config.proto.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from serving.core.devices import Device
from serving.core.errors import invalid

ANYWHERE = "global"
Key = tuple[str, str]  # resource, and the device it lies on or ANYWHERE


class Demand(NamedTuple):
    """What one execution holds, and its weight."""

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
    """Holders are any hashable objects: instances. Used on the event loop's thread only.

    limits: (resource, copies, device number or None for each device) from --rate-limit-resource. A resource that is not
    listed has as many copies as its most demanding instance needs.
    """

    def __init__(self, limits: Iterable[tuple[str, int, int | None]] = ()) -> None:
        self._limits = list(limits)
        self._demands: dict[object, Demand] = {}
        self._executions: Counter[object] = Counter()
        self._used: Counter[Key] = Counter()
        self._granted: dict[object, Demand] = {}
        self._waiting: dict[object, Callable[[], None]] = {}

    def register(self, holder: object, demand: Demand) -> None:
        """Add an instance; INVALID_ARG for a resource that is global for one model and on devices for another, or that
        can never be granted."""
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

    def unregister(self, holder: object) -> None:
        """Forget an instance; what it holds stays counted until it is released."""
        for table in (self._demands, self._executions, self._waiting):
            table.pop(holder, None)
        self._wake_waiting()  # it may have been its turn

    def acquire(self, holder: object, wake: Callable[[], None]) -> bool:
        """Take the holder's resources; when they are not free, `wake` is called once that it should try again."""
        demand = self._demands[holder]
        self._waiting.pop(holder, None)
        if not self._free(demand) or self._another_goes_first(holder):
            self._waiting[holder] = wake
            return False
        self._used.update(dict(demand.resources))
        self._granted[holder] = demand
        self._executions[holder] += 1
        return True

    def release(self, holder: object) -> None:
        """Give the resources back and wake those that wait for them, the one whose turn it is first."""
        self._used.subtract(dict(self._granted.pop(holder, NO_DEMAND).resources))
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        for waiting in sorted(self._waiting, key=self._turn):
            if self._free(self._demands[waiting]):
                self._waiting[waiting]()

    def _another_goes_first(self, holder: object) -> bool:
        mine = self._turn(holder)
        keys = {key for key, _ in self._demands[holder].resources}
        return any(
            self._turn(other) < mine
            and self._free(self._demands[other])
            and keys.intersection(key for key, _ in self._demands[other].resources)
            for other in self._waiting
        )

    def _turn(self, holder: object) -> int:
        return self._executions[holder] * self._demands[holder].priority

    def _free(self, demand: Demand) -> bool:
        return all(self._used[key] + count <= self._copies(key) for key, count in demand.resources)

    def _copies(self, key: Key) -> int:
        limit = self._limit(key)
        if limit is not None:
            return limit
        return max(count for demand in self._demands.values() for known, count in demand.resources if known == key)

    def _limit(self, key: Key) -> int | None:
        """Return the copies that the command line gives a resource: for its device, else for every device."""
        name, place = key
        number = place.partition(":")[2]
        found = None
        for limited, copies, device in self._limits:
            if limited == name and (device is None or str(device) == number):
                found = copies if device is not None or found is None else found
        return found
