"""When requests are due: after an answer (a closed loop), or at the times of a Poisson process (an open loop)."""

import random
from collections import deque
from collections.abc import Iterator


class Closed:
    """Each of `clients` connections has one request under way, and sends the next request after the answer."""

    def __init__(self, clients: int) -> None:
        self.connections = self.most_connections = clients
        self._due = deque([0.0] * clients)

    def next_due(self, stop: float) -> float | None:
        """Return when the next request is due, in seconds from the start; None if none is due before `stop`."""
        return self._due[0] if self._due and self._due[0] < stop else None

    def sent(self) -> None:
        """Take the due request out."""
        self._due.popleft()

    def ended(self, now: float) -> None:
        """Record that a request has ended at `now`."""
        self._due.append(now)


class Poisson:
    """Requests are due at the times of a Poisson process, whether or not earlier requests were answered.

    The latency of a request counts from the time at which it was due. So it includes the wait for a free connection, as a user
    would notice it. A closed loop leaves out exactly these waits.
    """

    FIRST_CONNECTIONS = 64  # the connections that are opened before the clock starts
    MOST_CONNECTIONS = 512  # if all are busy, a request waits for the next free connection

    def __init__(self, per_second: float, seed: int = 0) -> None:
        self.connections, self.most_connections = self.FIRST_CONNECTIONS, self.MOST_CONNECTIONS
        self._moments = moments(per_second, seed)
        self._next = next(self._moments)

    def next_due(self, stop: float) -> float | None:
        return self._next if self._next < stop else None

    def sent(self) -> None:
        self._next = next(self._moments)

    def ended(self, now: float) -> None:
        """Do nothing: an answer makes no request due."""


def moments(per_second: float, seed: int = 0) -> Iterator[float]:
    """Yield the times of a Poisson process with this rate, in seconds from its start, without end."""
    source = random.Random(seed)
    moment = 0.0
    while True:
        moment += source.expovariate(per_second)
        yield moment
