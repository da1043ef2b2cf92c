"""Fair shares of inference: limits the number of requests that each person has at the inference server at a time.

A model answers requests in their order. Without a limit, everybody would wait for the hundred slow requests of one person. With
it, a person has at most SHARE requests under way, with all tokens together. Further requests of this person wait. When all
SLOTS are taken, freed slots go to the waiting people in turn.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from contextlib import asynccontextmanager, contextmanager

from django.db import close_old_connections, transaction

from dashboard.access.authorisation import Actor
from dashboard.shared.exceptions import TooMany

SLOTS = 64  # the slots of one web process: fewer than its HTTP connections to the server
SHARE = 8  # slots of one person
WAITING = 128  # the most waiting requests of one person; each holds a thread and its body
WAIT_S = 300.0  # the longest wait for a slot, as long as an answer may take


class FairShares:
    """Slots that are shared fairly between people. Safe on any thread and event loop."""

    def __init__(self, slots: int = SLOTS, share: int = SHARE, waiting: int = WAITING) -> None:
        self._slots, self._share, self._most_waiting = slots, share, waiting
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}  # person -> slots
        self._waiting: dict[int, deque[Future[None]]] = {}  # person -> tickets; the next person is first

    @contextmanager
    def slot(self, person: int, wait_s: float = WAIT_S) -> Iterator[None]:
        """Wait for a slot and hold it.

        Raises TooMany if the person has too many waiting requests, or no slot becomes free in time.
        """
        ticket = self._ask(person)
        try:
            ticket.result(wait_s)
        except WaitedTooLong:
            raise _no_slot_in_time(self._share) from None
        else:
            yield
        finally:
            self._end(person, ticket)

    @asynccontextmanager
    async def async_slot(self, person: int, wait_s: float = WAIT_S) -> AsyncIterator[None]:
        """Hold a slot as `slot` does, without blocking the event loop."""
        ticket = self._ask(person)
        try:
            async with asyncio.timeout(wait_s):
                await asyncio.wrap_future(ticket)
        except TimeoutError:
            self._end(person, ticket)
            raise _no_slot_in_time(self._share) from None
        except BaseException:
            self._end(person, ticket)
            raise
        try:
            yield
        finally:
            self._end(person, ticket)

    def _ask(self, person: int) -> "Future[None]":
        """Return a ticket, a future that is done when the ticket has a slot."""
        ticket: Future[None] = Future()
        with self._lock:
            queue = self._waiting.setdefault(person, deque())
            queue.append(ticket)
            ready = self._give_out()
            if ticket not in ready and len(queue) > self._most_waiting:
                self._leave(person, ticket)
                raise TooMany(
                    f"{self._taken.get(person, 0)} of your inference requests are under way and {len(queue)} wait: send more "
                    "when some of them have been answered"
                )
        _resolve(ready)
        return ticket

    def _end(self, person: int, ticket: "Future[None]") -> None:
        """Free a ticket's slot, or withdraw the ticket if it still waits."""
        with self._lock:
            if not self._leave(person, ticket):
                self._taken[person] -= 1
                if not self._taken[person]:
                    del self._taken[person]
            ready = self._give_out()
        _resolve(ready)

    def _leave(self, person: int, ticket: "Future[None]") -> bool:
        """Remove a ticket from the queue; return False if it is not there."""
        queue = self._waiting.get(person)
        if queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        if not queue:
            del self._waiting[person]
        return True

    def _give_out(self) -> "list[Future[None]]":
        """Give the free slots to waiting tickets, one to each person in turn; return these tickets."""
        ready: list[Future[None]] = []
        free = self._slots - sum(self._taken.values())
        while free > 0:
            person = next((one for one in self._waiting if self._taken.get(one, 0) < self._share), None)
            if person is None:
                break
            queue = self._waiting.pop(person)
            ready.append(queue.popleft())
            if queue:
                self._waiting[person] = queue  # this person has the last turn now
            self._taken[person] = self._taken.get(person, 0) + 1
            free -= 1
        return ready


def _resolve(tickets: "list[Future[None]]") -> None:
    for ticket in tickets:
        if ticket.set_running_or_notify_cancel():
            ticket.set_result(None)


def _no_slot_in_time(share: int) -> TooMany:
    return TooMany(
        f"{share} of your inference requests are under way and take long: try again when they have been answered"
    )


INFERENCE = FairShares()  # the slots of this web process


@contextmanager
def inference_slot(actor: Actor) -> Iterator[None]:
    """Hold a slot for one inference of a person. Raises TooMany as `FairShares.slot` does."""
    if not transaction.get_connection().in_atomic_block:
        close_old_connections()  # no session of the database is held while a request waits
    with INFERENCE.slot(actor.user.pk if actor.user is not None else 0):
        yield


@asynccontextmanager
async def async_inference_slot(actor: Actor) -> AsyncIterator[None]:
    """Hold a slot for one stream of a person, as `inference_slot` does."""
    async with INFERENCE.async_slot(actor.user.pk if actor.user is not None else 0):
        yield
