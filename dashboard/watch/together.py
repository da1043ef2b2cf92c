"""What `watch` does once for all servers: it reads what they should serve, and does the work of several servers together.

With 200 servers, a query and a transaction of each one in each second would be the work of several cores.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import Error, InterfaceError, OperationalError, close_old_connections

from dashboard.metrics.services import ServerTick, metrics_store_ticks
from dashboard.models import ModelSync, Rollout, Server
from dashboard.releases.rollout_states import UNFINISHED
from dashboard.releases.selectors import versions_wanted
from dashboard.servers.server_state import servers_checked
from dashboard.servers.wanted import Wishes
from dashboard.shared.changes import kept_while_unchanged

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

# The age up to which servers share a reading: longer means fewer queries, and what is wanted is noticed later by as much.
READ_S = 0.4
# The pause between two stores of what feeds tell: longer means fewer transactions, and charts that are later by as much.
STORE_S = 0.5
MOST = 50  # the most servers in one transaction, so that none takes long
CHECKED_S = 1.0
# A call waits for calls of other servers: for the first time, multiplied by the number of servers, and at most for the second.
# Longer means fewer transactions of more servers each, and every load takes longer by as much. So one server hardly waits, and
# the most is a small part of a load.
GATHER_S, GATHER_MOST_S = 0.0005, 0.1


class Served(NamedTuple):
    """The versions that should be served: of each loaded model by its name, and of each release that is wanted by its id."""

    of_models: dict[str, list[int]]
    of_releases: dict[int, list[int]]


@dataclass(frozen=True)
class Reading:
    """What is wanted now. again: ids of server and model that were loaded and should be loaded again, whatever was applied.
    rolling: whether a rollout is not over. began: when the database was asked for `again`, in monotonic seconds."""

    wishes: Wishes
    served: Served
    again: frozenset[tuple[int, int]]
    rolling: bool
    began: float = field(compare=False)

    def again_on(self, server: Server) -> frozenset[int]:
        return frozenset(model for pk, model in self.again if pk == server.pk)


@kept_while_unchanged
def _wanted() -> tuple[Wishes, Served]:
    wishes = Wishes()  # before the versions, which may be newer than what is wanted, but not older
    return wishes, Served(*versions_wanted(wishes.releases))


@kept_while_unchanged
def _again() -> tuple[float, frozenset[tuple[int, int]]]:
    began = time.monotonic()
    return began, frozenset(ModelSync.objects.filter(applied_generation=0).values_list("server", "model"))


@kept_while_unchanged
def _rolling() -> list[bool]:
    return [Rollout.objects.filter(state__in=UNFINISHED).exists()]


class Together:
    """The work for all servers of one leading watcher. Whoever awaits it may be cancelled; the others are not affected."""

    def __init__(self) -> None:
        self.servers = 0  # how many share this
        self._reading: Reading | None = None
        self._read_at = float("-inf")
        self._reads = asyncio.Lock()
        self._waiting: dict[Callable[..., Any], list[tuple[Any, asyncio.Future[Any]]]] = {}
        self._checked: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self) -> Reading:
        """Return a reading that is at most READ_S old; the same object while nothing has changed."""
        if self._reading is not None and time.monotonic() - self._read_at <= READ_S:
            return self._reading
        async with self._reads:
            if self._reading is None or time.monotonic() - self._read_at > READ_S:
                self._reading = await sync_to_async(self._read)()
                self._read_at = time.monotonic()
            return self._reading

    def _read(self) -> Reading:
        wanted, (began, again), [rolling] = _wanted(), _again(), _rolling()
        found, before = Reading(*wanted, again, rolling, began), self._reading
        return before if before == found and (not again or before.began == began) else found

    async def ask(self, work: Callable[[list[Item]], Sequence[Result]], item: Item) -> Result:
        """Do some work for one item, and return its result. What others ask of the same work meanwhile is done in one call.

        work: returns a result for each item, or raises; what cannot be done for one item does not affect the others. Raises
        what its own item raises, and the faults of the database.
        """
        return cast(Result, await self._join(work, item))

    async def do(self, work: Callable[[list[Item]], None], item: Item, pause: float = 0.0) -> None:
        """Do some work that has no result, as `ask`. pause: seconds between two calls."""
        await self._join(work, item, pause)

    async def _join(self, work: Callable[[list[Any]], Any], item: object, pause: float = 0.0) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if work in self._waiting:
            self._waiting[work].append((item, done))
        else:
            self._waiting[work] = [(item, done)]
            self._begin(self._work(work, pause))
        return await done

    async def store(self, tick: ServerTick) -> None:
        """Store one second of a server."""
        await self.do(metrics_store_ticks, tick, STORE_S)

    def checked(self, server: Server) -> None:
        """Record within about CHECKED_S that a server answers as before."""
        if not self._checked:
            self._begin(self._record_checked())
        self._checked.add(server.pk)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, work: Callable[[list[Any]], Any], pause: float) -> None:
        try:
            while self._waiting[work]:
                if len(self._waiting[work]) < MOST:
                    await asyncio.sleep(min(GATHER_S * self.servers, GATHER_MOST_S))
                some, self._waiting[work] = self._waiting[work][:MOST], self._waiting[work][MOST:]
                results = await sync_to_async(_results)(work, [item for item, _ in some])
                for (_, done), (result, error) in zip(some, results, strict=True):
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(result)
                    else:
                        done.set_exception(error)
                if len(self._waiting[work]) < MOST:
                    await asyncio.sleep(pause)
        finally:
            del self._waiting[work]

    async def _record_checked(self) -> None:
        await asyncio.sleep(CHECKED_S)
        pks, self._checked = self._checked, set()
        try:
            await sync_to_async(servers_checked)(pks)
        except Error as error:
            logger.error("it was not stored that servers answer: %s", error)
            await sync_to_async(close_old_connections)()


def _results(work: Callable[[list[Any]], Any], items: list[Any]) -> list[tuple[Any, Exception | None]]:
    """Return the result or the error of each item. What the database refuses of one item does not affect the others."""
    try:
        found = work(items)
        return [(result, None) for result in ([None] * len(items) if found is None else found)]
    except (OperationalError, InterfaceError) as error:
        return [(None, error)] * len(items)
    except Exception as error:
        if len(items) == 1:
            return [(None, error)]
        return [found for one in items for found in _results(work, [one])]
