"""Limits the memory for requests and unread answers, over all HTTP and gRPC connections together.

Frontends reserve memory as the bytes of a body arrive, regardless of the announced length. They release it when the client has
taken the answer, which may be as large. If the memory is full, a request is refused immediately. It does not wait, because it
would keep the memory that it already has, and other requests could not continue.

The limit of a client depends on the free memory: a connection may hold CONNECTION_PART times the free memory, and an address
CLIENT_PART times. So a single client may use nearly all memory, many clients get equal shares, and a new client always gets
some. After a refusal, clients that hold more than an equal share and do not read their answers are disconnected
(`ConnectionMemory.must_make_room`). Bodies of up to COUNTED_FROM bytes are not counted, because their number on a connection is
limited anyway.
"""

import asyncio
import ipaddress
import os
import time
import zlib
from pathlib import Path

from serving.core.errors import Exhausted

COUNTED_FROM = 4096  # bodies of up to this many bytes are not counted
INFLATED_AT_A_TIME = 2  # the most large bodies that are inflated at the same time
SHARE = 4  # the default limit is the machine's memory divided by this
CONNECTION_PART, CLIENT_PART = 4, 8  # multiples of the free memory, which allow at most 4/5 and 8/9 of the limit
CLIENTS = 256  # the number of slots for addresses; several addresses may share a slot
SHORT_S = 5.0  # how long after a refusal clients may be disconnected to make room


class RequestMemory:
    """Counts the bytes of requests and of unread answers. Used on the event loop's thread."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit or machine_memory() // SHARE
        self.taken = 0
        self._refused_at = float("-inf")  # the time of the last refusal (time.monotonic)
        # Limits how many large bodies are inflated at the same time.
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
        """Reserve `size` more bytes. Raises Exhausted if they do not fit."""
        if self.total() + size > self.limit:
            raise self.exhausted()
        self.taken += size

    def give(self, size: int) -> None:
        self.taken -= size

    def exhausted(self) -> Exhausted:
        """Return a new error for a request that does not fit, and record the time of the refusal."""
        self._refused_at = time.monotonic()
        return Exhausted(
            f"the server's memory for requests, {self.limit} bytes (--request-memory-limit), is full: try again later"
        )


class ConnectionMemory:
    """The request memory that one connection holds."""

    __slots__ = ("_memory", "_slot", "held")

    def __init__(self, memory: RequestMemory, client: str) -> None:
        """client: the address of the client; "" if it is not known."""
        self._memory = memory
        self._slot = slot_of(client)
        self.held = 0

    def take(self, size: int) -> None:
        """Reserve `size` more bytes. Raises Exhausted if there is none, or at the limit of the connection or client."""
        memory = self._memory
        free = memory.limit - memory.total() - size
        if size > 0 and (
            self.held + size > CONNECTION_PART * free or memory.of_client(self._slot) + size > CLIENT_PART * free
        ):
            raise memory.exhausted()
        memory.take(size)  # raises before anything is counted if another process took the room
        self.held += size
        memory.count_client(self._slot, size)

    def give(self, size: int) -> None:
        self.held -= size
        self._memory.count_client(self._slot, -size)
        self._memory.give(size)

    @property
    def must_make_room(self) -> bool:
        """Return whether other clients need room, and this client holds at least an equal share."""
        memory = self._memory
        return memory.short and memory.of_client(self._slot) * memory.clients() >= memory.total()


def slot_of(client: str) -> int:
    """Return the slot of an address, which is the same in all processes. A /64 network of IPv6 addresses has one slot."""
    if ":" in client:
        try:
            client = str(ipaddress.IPv6Interface(f"{client.partition('%')[0]}/64").network)
        except ValueError:
            pass
    return zlib.crc32(client.encode()) % CLIENTS


def machine_memory() -> int:
    """Return the most bytes that this process may use: the machine's memory, or the limit of its container."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # there is no cgroup v2, or its limit is "max"
        return installed
