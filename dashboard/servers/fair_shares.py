"""A fair share of inference for each person: how many of their requests are with the inference server at a time.

A model answers in the order in which it is asked. So whoever sends a hundred slow requests at once would have everybody else
wait behind all of them. Here a person has SHARE of them under way, by whichever tokens; their further requests wait for these,
and nobody else does. Where all SLOTS are taken, those who wait are let in person by person, in turns.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from contextlib import asynccontextmanager, contextmanager

from django.db import close_old_connections

from dashboard.access.authorisation import Actor
from dashboard.shared.exceptions import TooMany

SLOTS = 64  # in one web process: fewer than its HTTP connections to the server
SHARE = 8  # of them, for one person
WAITING = 128  # requests of one person, each of which holds a thread and its body
WAIT_S = 300.0  # as long as an answer may take


class FairShares:
    """Slots that are shared fairly between people. Any thread, any event loop."""

    def __init__(self, slots: int = SLOTS, share: int = SHARE, waiting: int = WAITING) -> None:
        self._slots, self._share, self._most_waiting = slots, share, waiting
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}  # how many slots each person has
        self._waiting: dict[int, deque[Future[None]]] = {}  # by person; whose turn is next stands first

    @contextmanager
    def slot(self, person: int, wait_s: float = WAIT_S) -> Iterator[None]:
        """Hold a slot, once one is free for this person. TooMany: as many of theirs wait already, or it waited in vain."""
        ticket = self._ask(person)
        try:
            ticket.result(wait_s)
        except WaitedTooLong:
            raise _waited_in_vain(self._share) from None
        else:
            yield
        finally:
            self._end(person, ticket)

    @asynccontextmanager
    async def async_slot(self, person: int, wait_s: float = WAIT_S) -> AsyncIterator[None]:
        """Hold a slot, as `slot` does, while the event loop runs on."""
        ticket = self._ask(person)
        try:
            async with asyncio.timeout(wait_s):
                await asyncio.wrap_future(ticket)
        except TimeoutError:
            self._end(person, ticket)
            raise _waited_in_vain(self._share) from None
        except BaseException:
            self._end(person, ticket)
            raise
        try:
            yield
        finally:
            self._end(person, ticket)

    def _ask(self, person: int) -> "Future[None]":
        """Return a ticket, which is done when its slot is there."""
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
        _tell(ready)
        return ticket

    def _end(self, person: int, ticket: "Future[None]") -> None:
        """Take a slot back, or the ticket of one who waits no more."""
        with self._lock:
            if not self._leave(person, ticket):
                self._taken[person] -= 1
                if not self._taken[person]:
                    del self._taken[person]
            ready = self._give_out()
        _tell(ready)

    def _leave(self, person: int, ticket: "Future[None]") -> bool:
        """Take a ticket out of the queue; False where it has left it."""
        queue = self._waiting.get(person)
        if queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        if not queue:
            del self._waiting[person]
        return True

    def _give_out(self) -> "list[Future[None]]":
        """Give the free slots to those who wait, one to each person in turn; return their tickets."""
        ready: list[Future[None]] = []
        free = self._slots - sum(self._taken.values())
        while free > 0:
            person = next((one for one in self._waiting if self._taken.get(one, 0) < self._share), None)
            if person is None:
                break
            queue = self._waiting.pop(person)
            ready.append(queue.popleft())
            if queue:
                self._waiting[person] = queue  # last in turn from now on
            self._taken[person] = self._taken.get(person, 0) + 1
            free -= 1
        return ready


def _tell(tickets: "list[Future[None]]") -> None:
    for ticket in tickets:
        if ticket.set_running_or_notify_cancel():
            ticket.set_result(None)


def _waited_in_vain(share: int) -> TooMany:
    return TooMany(
        f"{share} of your inference requests are under way and take long: try again when they have been answered"
    )


INFERENCE = FairShares()
"""Those of this web process."""


@contextmanager
def inference_slot(actor: Actor) -> Iterator[None]:
    """Hold a slot for one inference of a person. TooMany as `FairShares.slot`."""
    close_old_connections()  # who waits for a model holds no session of the database
    with INFERENCE.slot(actor.user.pk if actor.user is not None else 0):
        yield


@asynccontextmanager
async def async_inference_slot(actor: Actor) -> AsyncIterator[None]:
    """Hold a slot for one stream of a person, as `inference_slot` does."""
    async with INFERENCE.async_slot(actor.user.pk if actor.user is not None else 0):
        yield
