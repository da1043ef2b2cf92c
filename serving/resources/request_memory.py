"""Bounds the bytes of requests and of unread answers, over all connections of both protocols together.

Frontends take room as the bytes of a body arrive, whatever length the client announces, and give it back when the client has
taken the answer, which may be as large. A request that finds no room is refused at once, so that others can go on: no request
waits for room while it holds some.

A client's bound depends on the free room: a connection may hold CONNECTION_PART times as much, an address CLIENT_PART times. So
a single client may have nearly all, many clients have even shares, and a new client always finds some room. After a refusal,
clients that hold more than an even share and do not read their answers are cut off (`ConnectionMemory.must_make_room`). Bodies
of up to COUNTED_FROM bytes are not counted, because their number on a connection is bounded anyway.
"""

import asyncio
import ipaddress
import os
import time
import zlib
from pathlib import Path

from serving.core.errors import Exhausted

COUNTED_FROM = 4096  # bytes
INFLATED_AT_A_TIME = 2  # large bodies
SHARE = 4  # the default limit is this part of the machine's memory
CONNECTION_PART, CLIENT_PART = 4, 8  # times what is free then, which leaves a fifth and a ninth of the limit to others
CLIENTS = 256  # slots of addresses, which may share one
SHORT_S = 5.0  # after a refusal, in which room is made


class RequestMemory:
    """Used on the event loop's thread."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit or machine_memory() // SHARE
        self.taken = 0
        self._refused_at = float("-inf")  # time of time.monotonic
        # Compressed bodies wait as they came, so that few inflated ones are in memory at the same time.
        self.inflating = asyncio.Semaphore(INFLATED_AT_A_TIME)
        self._by_client: list[int] | memoryview[int] = [0] * CLIENTS  # bytes that this process holds for each slot

    @property
    def scarce(self) -> bool:
        return 2 * self.total() > self.limit

    @property
    def short(self) -> bool:
        """Return whether a request was refused in the last SHORT_S seconds."""
        return time.monotonic() - self._refused_at < SHORT_S

    def total(self) -> int:
        return self.taken

    def of_client(self, slot: int) -> int:
        """Return the bytes that are held for the addresses of a slot."""
        return self._by_client[slot]

    def count_client(self, slot: int, size: int) -> None:
        self._by_client[slot] += size

    def clients(self) -> int:
        """Return the number of slots that hold any bytes."""
        return CLIENTS - list(self._by_client).count(0)

    def take(self, size: int) -> None:
        """Take room for `size` bytes more; Exhausted if there is none."""
        if self.total() + size > self.limit:
            raise self.exhausted()
        self.taken += size

    def give(self, size: int) -> None:
        self.taken -= size

    def exhausted(self) -> Exhausted:
        """Return a new error for a request that finds no room, and note the time of the refusal."""
        self._refused_at = time.monotonic()
        return Exhausted(
            f"the server holds as much of clients' requests as it may, {self.limit} bytes "
            "(--request-memory-limit): try again later"
        )


class ConnectionMemory:
    """The part of the memory that one connection holds."""

    __slots__ = ("_memory", "_slot", "held")

    def __init__(self, memory: RequestMemory, client: str) -> None:
        """client: its address, "" if it is not known."""
        self._memory = memory
        self._slot = slot_of(client)
        self.held = 0

    def take(self, size: int) -> None:
        """Take room for `size` bytes more; Exhausted if there is none, or this client has its part."""
        memory = self._memory
        free = memory.limit - memory.total() - size
        if size > 0 and (
            self.held + size > CONNECTION_PART * free or memory.of_client(self._slot) + size > CLIENT_PART * free
        ):
            raise memory.exhausted()
        memory.take(size)  # raises, and nothing is counted, if another process took the free room
        self.held += size
        memory.count_client(self._slot, size)

    def give(self, size: int) -> None:
        self.held -= size
        self._memory.count_client(self._slot, -size)
        self._memory.give(size)

    @property
    def must_make_room(self) -> bool:
        """Return whether other clients need room, and this one holds at least an even share."""
        memory = self._memory
        return memory.short and memory.of_client(self._slot) * memory.clients() >= memory.total()


def slot_of(client: str) -> int:
    """Return the slot of an address, the same in all processes. A client with an IPv6 address has its whole /64."""
    if ":" in client:
        try:
            client = str(ipaddress.IPv6Interface(f"{client.partition('%')[0]}/64").network)
        except ValueError:
            pass
    return zlib.crc32(client.encode()) % CLIENTS


def machine_memory() -> int:
    """Return the bytes that this process may use at most: of the machine, or of the container that it runs in."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return installed
