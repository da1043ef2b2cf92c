"""What `watch` does once for all servers: it reads what they should serve, stores their seconds, and records who answers.

With 200 servers, a query and a transaction of each one in each second would be the work of several cores.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.db import Error, InterfaceError, OperationalError, close_old_connections

from dashboard.metrics.services import ServerTick, metrics_store_ticks
from dashboard.models import ModelSync, Rollout, Server
from dashboard.releases.rollout_states import UNFINISHED
from dashboard.servers.server_state import servers_checked
from dashboard.servers.wanted import Wishes
from dashboard.shared.changes import kept_while_unchanged

logger = logging.getLogger(__name__)

READ_S = 0.4  # the age up to which servers share a reading
STORE_S = 0.5  # the seconds that come in this time are stored together
MOST = 50  # the most servers in one transaction, so that none takes long
CHECKED_S = 1.0


@dataclass(frozen=True)
class Reading:
    """What is wanted now. again: ids of server and model that were loaded and should be loaded again, whatever was applied.
    rolling: whether a rollout is not over. began: when the database was asked, in monotonic seconds."""

    wishes: Wishes
    names: set[str]
    again: frozenset[tuple[int, int]]
    rolling: bool
    began: float

    def again_on(self, server: Server) -> frozenset[int]:
        return frozenset(model for pk, model in self.again if pk == server.pk)


@kept_while_unchanged
def _read() -> Reading:
    began = time.monotonic()
    wishes = Wishes()
    again = frozenset(ModelSync.objects.filter(applied_generation=0).values_list("server", "model"))
    return Reading(wishes, wishes.names, again, Rollout.objects.filter(state__in=UNFINISHED).exists(), began)


class Together:
    """The work for all servers of one leading watcher. Whoever awaits it may be cancelled; the others are not affected."""

    def __init__(self) -> None:
        self._reading: Reading | None = None
        self._read_at = float("-inf")
        self._reads = asyncio.Lock()
        self._ticks: list[tuple[ServerTick, asyncio.Future[None]]] = []
        self._checked: set[int] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def read(self) -> Reading:
        """Return a reading that is at most READ_S old; the same object while nothing has changed."""
        async with self._reads:
            if self._reading is None or time.monotonic() - self._read_at > READ_S:
                self._reading = await sync_to_async(_read)()
                self._read_at = time.monotonic()
            return self._reading

    async def store(self, tick: ServerTick) -> None:
        """Store one second of a server. Raises what its own second raises, and the faults of the database."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ticks.append((tick, stored))
        if "store" not in self._tasks:
            self._tasks["store"] = asyncio.create_task(self._store())
        await stored

    def checked(self, server: Server) -> None:
        """Record within about CHECKED_S that a server answers as before."""
        self._checked.add(server.pk)
        if "check" not in self._tasks:
            self._tasks["check"] = asyncio.create_task(self._record_checked())

    async def _store(self) -> None:
        try:
            while self._ticks:
                some, self._ticks = self._ticks[:MOST], self._ticks[MOST:]
                results = await sync_to_async(_stored)([tick for tick, _ in some])
                for (_, stored), error in zip(some, results, strict=True):
                    if not stored.done() and error is None:
                        stored.set_result(None)
                    elif not stored.done() and error is not None:
                        stored.set_exception(error)
                if len(self._ticks) < MOST:
                    await asyncio.sleep(STORE_S)
        finally:
            del self._tasks["store"]

    async def _record_checked(self) -> None:
        try:
            await asyncio.sleep(CHECKED_S)
            pks, self._checked = self._checked, set()
            await sync_to_async(servers_checked)(pks)
        except Error as error:
            logger.error("it was not stored that servers answer: %s", error)
            await sync_to_async(close_old_connections)()
        finally:
            del self._tasks["check"]


def _stored(ticks: list[ServerTick]) -> list[Exception | None]:
    """Store seconds together; return the error of each. What the database refuses of one server does not affect the others."""
    try:
        metrics_store_ticks(ticks)
    except (OperationalError, InterfaceError) as error:
        return [error] * len(ticks)
    except Exception as error:
        if len(ticks) == 1:
            return [error]
        return [found for one in ticks for found in _stored([one])]
    return [None] * len(ticks)
