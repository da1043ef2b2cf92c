"""Timers with a precision of microseconds, because an event loop's timers are only precise to milliseconds.

uvloop and asyncio would round a queue delay of 500 us to zero. A scheduler that then polls until the delay is over would keep
the loop busy. Linux's timerfd wakes the loop in time. On other systems, a delay takes at least a millisecond.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import time
import weakref
from collections.abc import Callable

_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_S = 1_000_000_000

_libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, because releasing it would take longer than the calls


class _Timerspec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class PreciseTimer:
    """A scheduled call, which may be cancelled."""

    __slots__ = ("callback", "due_ns")

    def __init__(self, due_ns: int, callback: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class PreciseTimers:
    """The timers of one event loop, for its thread only. One timerfd, which is set to the earliest timer, serves all timers.

    A cancelled timer is kept until its due time, which is at most milliseconds away.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due: list[tuple[int, int, PreciseTimer]] = []
        self._numbers = itertools.count()
        self._spec = _Timerspec()
        self._at = ctypes.byref(self._spec)
        self._loop = weakref.ref(loop)  # weak, because the loop's reader refers to this object
        create = getattr(_libc, "timerfd_create", None)
        self._descriptor: int = -1 if create is None else create(time.CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._fired)
            weakref.finalize(loop, os.close, self._descriptor)

    def call_in(self, delay_ns: int, callback: Callable[[], None]) -> PreciseTimer:
        """Call back after `delay_ns` nanoseconds, not earlier."""
        timer = PreciseTimer(time.monotonic_ns() + delay_ns, callback)
        heapq.heappush(self._due, (timer.due_ns, next(self._numbers), timer))
        if self._due[0][2] is timer:
            self._set(timer.due_ns)
        return timer

    def _set(self, due_ns: int) -> None:
        if self._descriptor >= 0:
            self._spec.value_s, self._spec.value_ns = divmod(due_ns, _S)
            _libc.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, self._at, None)
            return
        loop = self._loop()
        if loop is not None:
            loop.call_later(max(0.001, (due_ns - time.monotonic_ns()) / _S), self._run)

    def _fired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # the timer was set again after it had fired
            return
        self._run()

    def _run(self) -> None:
        due = self._due
        now = time.monotonic_ns()
        try:
            while due and due[0][0] <= now:
                callback = heapq.heappop(due)[2].callback
                if callback is not None:
                    callback()
        finally:
            if due:
                self._set(due[0][0])


_of_loop: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PreciseTimers]" = weakref.WeakKeyDictionary()


def precise_timers(loop: asyncio.AbstractEventLoop) -> PreciseTimers:
    timers = _of_loop.get(loop)
    if timers is None:
        timers = _of_loop[loop] = PreciseTimers(loop)
    return timers
