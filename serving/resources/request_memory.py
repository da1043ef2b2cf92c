"""How many bytes of requests the server holds at a time, over all connections of both protocols together.

Frontends take room as the bytes of a body come, not by what a client announces, and give it back when the client has taken
the answer, which may be as large. Who finds no room is refused at once, so that the others can go on: nobody waits for room
while holding some.
Bodies of up to COUNTED_FROM bytes are not counted: how many a connection may have under way is bounded anyway.
"""

import asyncio
import os
from pathlib import Path

from serving.core.errors import Exhausted

COUNTED_FROM = 4096  # bytes
INFLATED_AT_A_TIME = 2  # large bodies
SHARE = 4  # the default limit is this part of the machine's memory


class RequestMemory:
    """Used on the event loop's thread."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit or machine_memory() // SHARE
        self.taken = 0
        # What is compressed waits as it is, so that what many bodies become is not held at the same time.
        self.inflating = asyncio.Semaphore(INFLATED_AT_A_TIME)

    @property
    def scarce(self) -> bool:
        return 2 * self.taken > self.limit

    def take(self, size: int) -> None:
        """Take room for `size` bytes more; Exhausted where there is none."""
        if self.taken + size > self.limit:
            raise self.exhausted()
        self.taken += size

    def give(self, size: int) -> None:
        self.taken -= size

    def exhausted(self) -> Exhausted:
        return Exhausted(
            f"the server holds as much of clients' requests as it may, {self.limit} bytes "
            "(--request-memory-limit): try again later"
        )


def machine_memory() -> int:
    """Return the bytes that this process may use at most: of the machine, or of the container that it runs in."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return installed
