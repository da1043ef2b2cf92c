"""The delay before the next start of a process that keeps ending."""

# The first restarts begin immediately, because most crashes are single ones.
DELAYS_S = (0.0, 0.2, 0.5, 0.8, 2.0, 4.0, 8.0, 15.0, 30.0)
STABLE_S = 20.0
# The longest delay after a run in which the process answered.
ANSWERED_MAX_S = 0.8


class Backoff:
    """A delay that grows with each early end; a run of STABLE_S or longer resets it."""

    def __init__(self) -> None:
        self._ends = 0

    def delay(self, lived_s: float, *, answered: bool) -> float:
        """Return the seconds to wait after a run of `lived_s` seconds. answered: whether the process answered in that run."""
        if lived_s >= STABLE_S:
            self._ends = 0
        delay = DELAYS_S[min(self._ends, len(DELAYS_S) - 1)]
        self._ends += 1
        return min(delay, ANSWERED_MAX_S) if answered else delay

    def forget(self) -> None:
        self._ends = 0
