"""How long a model instance's executions take, and which of them are short enough for the event loop's own thread."""

from resource import RUSAGE_THREAD, getrusage

# How many executions on the instance's thread are looked at before the next one may run on the loop; four times as many each
# time that one was long after all, until so many in a row were short.
FIRST_LOOK = 4
LONGEST_LOOK = 4096
TRUSTED = 256
MUCH_LONGER = 4  # one execution of so many times the bound is enough to leave the loop


class _Size:
    """Executions of about one size."""

    __slots__ = ("estimate_ns", "least_ns", "look", "seen", "short")

    def __init__(self) -> None:
        self.estimate_ns = 0  # a moving mean, 0 before the first execution
        self.short = False
        self.seen = 0  # executions since `short` changed, or since the last look ended
        self.least_ns = 0  # the shortest of them
        self.look = FIRST_LOOK


class ExecutionTimes:
    """Moving estimates, apart for each doubling of the batch's rows: a batch of 64 says nothing of one alone.

    On the instance's thread an execution also waits for the interpreter's lock, so that the shortest of a few says whether the
    loop may try. There a size stays until its estimate exceeds the bound by a half, or until one execution takes several times
    the bound though the system did not interrupt it.
    """

    __slots__ = ("_interruptions", "_sizes", "bound_ns")

    def __init__(self, bound_ns: int) -> None:
        """bound_ns: what is short; 0 for nothing."""
        self.bound_ns = bound_ns
        self._sizes = [_Size() for _ in range(33)]
        self._interruptions = 0  # of the loop's thread, when it was last asked

    def short(self, rows: int) -> bool:
        """Return whether the next execution of so many rows should run on the loop."""
        return self._sizes[rows.bit_length()].short

    def estimate_ns(self, rows: int) -> int:
        """Return about how long the next execution of so many rows will take; 0 where nothing is known."""
        return self._sizes[rows.bit_length()].estimate_ns

    def add(self, rows: int, took_ns: int) -> None:
        """Count an execution. Called on the loop's thread."""
        size, bound = self._sizes[rows.bit_length()], self.bound_ns
        before = size.estimate_ns
        if size.short:
            much = MUCH_LONGER * bound
            size.estimate_ns = before + ((took_ns if took_ns < much else much) - before >> 3)
            size.seen += 1
            if size.estimate_ns * 2 > bound * 3 or (took_ns >= much and not self._interrupted()):
                size.short, size.seen = False, 0
                size.look = min(size.look * 4, LONGEST_LOOK)
            elif size.seen == TRUSTED:
                size.look = FIRST_LOOK
            return
        size.estimate_ns = before + (took_ns - before >> 3) if before else took_ns
        size.seen += 1
        if size.seen == 1 or took_ns < size.least_ns:
            size.least_ns = took_ns
        if size.seen >= size.look:
            size.seen = 0
            if size.least_ns < bound:
                size.short, size.estimate_ns = True, size.least_ns

    def _interrupted(self) -> bool:
        """Return whether the system has given the processor to others since this was last asked."""
        before, self._interruptions = self._interruptions, getrusage(RUSAGE_THREAD).ru_nivcsw
        return before != self._interruptions
