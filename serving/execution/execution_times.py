"""Measures a model instance's executions, and decides which are short enough for the event loop's own thread."""

from resource import RUSAGE_THREAD, getrusage

# Before an execution may run on the loop, FIRST_LOOK executions are measured.
# After each execution that was too long on the loop, four times as many are measured, up to LONGEST_LOOK.
# After TRUSTED short executions in a row, FIRST_LOOK executions are measured again.
FIRST_LOOK = 4
LONGEST_LOOK = 256
TRUSTED = 256
MUCH_LONGER = 4  # after one execution of this many times the bound on the loop, the next ones run on the thread
LONE = 5  # if no other request waits, executions of up to this many times the bound run on the loop

NEVER, WHEN_ALONE, ALWAYS = range(3)


class _Size:
    """The measured executions with about the same number of rows."""

    __slots__ = ("estimate_ns", "least_ns", "look", "on_loop", "seen")

    def __init__(self) -> None:
        self.estimate_ns = 0  # a moving mean; 0 before the first execution
        self.on_loop = NEVER
        self.seen = 0  # the number of executions since the last choice of a thread
        self.least_ns = 0  # the shortest of these executions
        self.look = FIRST_LOOK  # how many executions to measure before the next choice


class ExecutionTimes:
    """Moving estimates of execution times, one for each doubling of the batch's rows.

    On the instance's thread an execution also waits for the interpreter's lock, so the shortest of several executions decides
    whether the next ones may run on the loop. Batches of a size stay on the loop until their estimate exceeds the bound by
    half, or one execution takes MUCH_LONGER without an interruption by the system.
    """

    __slots__ = ("_interruptions", "_sizes", "bound_ns")

    def __init__(self, bound_ns: int) -> None:
        """bound_ns: executions that take less time are short; 0 if none is short."""
        self._sizes = [_Size() for _ in range(33)]
        self._interruptions = 0  # the interruptions of the loop's thread until the last check
        self.bound_ns = bound_ns

    def on_loop(self, rows: int) -> int:
        """Return when the next execution of this many rows should run on the loop: NEVER, WHEN_ALONE or ALWAYS."""
        return self._sizes[rows.bit_length()].on_loop

    def estimate_ns(self, rows: int) -> int:
        """Return the estimated time of the next execution of this many rows; 0 without an estimate."""
        return self._sizes[rows.bit_length()].estimate_ns

    def set_bound(self, bound_ns: int) -> None:
        """Set the bound. A different bound resets the estimates."""
        if bound_ns != self.bound_ns:
            self.bound_ns = bound_ns
            self._sizes = [_Size() for _ in range(33)]

    def add(self, rows: int, took_ns: int, inline: bool) -> None:
        """Count an execution. inline: it ran on the loop. Called on the loop's thread."""
        size = self._sizes[rows.bit_length()]
        if inline:
            bound = self.bound_ns if size.on_loop == ALWAYS else self.bound_ns * LONE
            much = MUCH_LONGER * bound
            size.estimate_ns += (took_ns if took_ns < much else much) - size.estimate_ns >> 3
            if size.estimate_ns * 2 > bound * 3 or (took_ns >= much and not self._interrupted()):
                size.on_loop, size.seen = NEVER, 0
                size.look = min(size.look * 4, LONGEST_LOOK)
                return
        elif size.on_loop == ALWAYS:
            return  # it ran on the thread, which takes longer, because the loop had no time
        elif size.estimate_ns:
            size.estimate_ns += took_ns - size.estimate_ns >> 3
        else:
            size.estimate_ns = took_ns
        size.seen += 1
        if size.seen == 1 or took_ns < size.least_ns:
            size.least_ns = took_ns
        if size.on_loop == ALWAYS:
            if size.seen == TRUSTED:
                size.look = FIRST_LOOK
        elif size.seen >= size.look:
            self._choose_thread(size)

    def _choose_thread(self, size: _Size) -> None:
        """Choose the thread of the next executions from the measured ones."""
        size.seen = 0
        before = size.on_loop
        if size.least_ns < self.bound_ns:
            size.on_loop = ALWAYS
        elif size.least_ns < self.bound_ns * LONE:
            size.on_loop = WHEN_ALONE
        else:
            size.on_loop = NEVER
        if size.on_loop > before:
            size.estimate_ns = size.least_ns

    def _interrupted(self) -> bool:
        """Return whether the system has interrupted the loop's thread since the last call."""
        before, self._interruptions = self._interruptions, getrusage(RUSAGE_THREAD).ru_nivcsw
        return before != self._interruptions
