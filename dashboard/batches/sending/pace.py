"""The rows that a batch job has under way at a model: a limit that requests wait for, and that the governor changes."""

import asyncio

FIRST_ROWS = 8  # the limit until live traffic is known
LONGEST_PAUSE_S = 1.0


class Pace:
    """A limit on rows under way, on one event loop. most: the largest limit.

    pause_s: the wait before each request, once the limit cannot become smaller. held: nothing is sent, so that live traffic is
    measured without this job. suspects: requests that were lost with their server; while there are any, one request at a time
    is under way, so that the request that ends the server is found.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(FIRST_ROWS, most))
        self._under_way = 0
        self._turn = asyncio.Lock()  # requests are let through in their order
        self._changed = asyncio.Event()
        self.pause_s = 0.0
        self.held = False
        self.suspects = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def alone(self) -> bool:
        return self.suspects > 0

    async def take(self, wanted: int, *, whole: bool = False) -> int:
        """Wait until rows may be sent, and return their number: at most `wanted`, and as many as the limit allows.

        whole: return `wanted` itself, for a request that is sent again.
        """
        async with self._turn:
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            while (rows := self._granted(wanted, whole)) == 0:
                self._changed.clear()
                await self._changed.wait()
            self._under_way += rows
            return rows

    def give(self, rows: int) -> None:
        self._under_way -= rows
        self._changed.set()

    def hold(self, held: bool) -> None:
        self.held = held
        self._changed.set()

    def faster(self, share: float) -> None:
        """Add a share of the largest limit, at least one row."""
        self.pause_s = 0.0
        self._limit = min(self._most, self._limit + max(1.0, share * self._most))
        self._changed.set()

    def slower(self) -> None:
        """Halve the limit; at one row, wait between requests instead."""
        if self._limit <= 1:
            self.pause_s = min(LONGEST_PAUSE_S, 2 * self.pause_s or 0.01)
        self._limit = max(1.0, self._limit / 2)

    def careful(self) -> None:
        """Return to the first limit, because live traffic is not known any more."""
        self._limit = min(self._limit, FIRST_ROWS)

    def _granted(self, wanted: int, whole: bool) -> int:
        """Return the rows that may be sent now; 0 for none yet."""
        if self.held or (self.alone and self._under_way):
            return 0
        rows = wanted if whole else max(1, min(wanted, self.limit))
        return rows if not self._under_way or self._under_way + rows <= self.limit else 0
