"""How long a model instance's executions take, and which of them are short enough for the event loop's own thread."""

# How many executions in a row must have been short before the next one runs on the loop; each one that was long after all
# asks for four times as many.
FIRST_STREAK = 4
LONGEST_STREAK = 4096
MUCH_LONGER = 4  # one execution of so many times the bound is enough to leave the loop


class _Class:
    """Executions of about one size."""

    __slots__ = ("estimate_ns", "short", "streak", "wanted")

    def __init__(self) -> None:
        self.estimate_ns = 0  # a moving mean, 0 before the first execution
        self.short = False
        self.streak = 0
        self.wanted = FIRST_STREAK


class ExecutionTimes:
    """Moving estimates, apart for each doubling of the batch's rows: a batch of 64 says nothing of one alone.

    A class of sizes counts as short once `wanted` executions in a row stayed under the bound. It is not any more when its
    estimate exceeds the bound by a half, or at once when one execution takes several times the bound; it then has to be short
    for longer than before, so that a model near the bound does not go to and fro.
    """

    __slots__ = ("_classes", "bound_ns")

    def __init__(self, bound_ns: int) -> None:
        """bound_ns: what is short; 0 for nothing."""
        self.bound_ns = bound_ns
        self._classes = [_Class() for _ in range(33)]

    def short(self, rows: int) -> bool:
        """Return whether the next execution of so many rows will be short."""
        return self._classes[rows.bit_length()].short

    def estimate_ns(self, rows: int) -> int:
        """Return about how long the next execution of so many rows will take; 0 where nothing is known."""
        return self._classes[rows.bit_length()].estimate_ns

    def add(self, rows: int, took_ns: int) -> None:
        """Count an execution."""
        one, bound = self._classes[rows.bit_length()], self.bound_ns
        before = one.estimate_ns
        one.estimate_ns = estimate = before + (took_ns - before >> 3) if before else took_ns
        if one.short:
            if took_ns >= MUCH_LONGER * bound or estimate * 2 > bound * 3:
                one.short, one.streak = False, 0
                one.wanted = min(one.wanted * 4, LONGEST_STREAK)
        elif took_ns < bound:
            one.streak += 1
            if one.streak >= one.wanted and estimate < bound:
                one.short = True
        else:
            one.streak = 0
