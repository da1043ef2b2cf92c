"""How long to wait before the next start of a process that keeps ending."""

# Sudden deaths are mostly single ones: the first restarts begin at once.
DELAYS_S = (0.0, 0.2, 0.5, 0.8, 2.0, 4.0, 8.0, 15.0, 30.0)
STABLE_S = 20.0


class Backoff:
    """Grows with each early end; a run of STABLE_S forgets the earlier ones."""

    def __init__(self) -> None:
        self._ends = 0

    def delay(self, lived_s: float) -> float:
        """Seconds to wait after a run of `lived_s`."""
        if lived_s >= STABLE_S:
            self._ends = 0
        delay = DELAYS_S[min(self._ends, len(DELAYS_S) - 1)]
        self._ends += 1
        return delay

    def forget(self) -> None:
        self._ends = 0
