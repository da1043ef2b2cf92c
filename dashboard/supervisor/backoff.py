"""How long to wait before the next start of a process that keeps ending."""

# Sudden deaths are mostly single ones: the first restarts begin at once.
DELAYS_S = (0.0, 0.2, 0.5, 0.8, 2.0, 4.0, 8.0, 15.0, 30.0)
STABLE_S = 20.0
# A process that did its work until it ended is never kept away for long.
ANSWERED_MAX_S = 0.8


class Backoff:
    """Grows with each early end; a run of STABLE_S forgets the earlier ones."""

    def __init__(self) -> None:
        self._ends = 0

    def delay(self, lived_s: float, *, answered: bool) -> float:
        """Seconds to wait after a run of `lived_s`. `answered`: it had begun to do its work."""
        if lived_s >= STABLE_S:
            self._ends = 0
        delay = DELAYS_S[min(self._ends, len(DELAYS_S) - 1)]
        self._ends += 1
        return min(delay, ANSWERED_MAX_S) if answered else delay

    def forget(self) -> None:
        self._ends = 0
