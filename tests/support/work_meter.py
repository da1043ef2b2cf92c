"""Measures the work of a call, independent of the load of the machine.

The unit is instructions, counted by the kernel. If the kernel does not allow that, it is calls of functions, in Python and C.
"""

import contextlib
import ctypes
import gc
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(platform.machine())


def _open_counter() -> int:
    """Open a counter of this thread's instructions outside the kernel. Return its descriptor, or -1."""
    if _PERF_EVENT_OPEN is None:
        return -1
    size = 112
    hardware, instructions, without_kernel_and_hypervisor = 0, 1, 1 << 5 | 1 << 6
    head = struct.pack("=IIQQQQQ", hardware, size, instructions, 0, 0, 0, without_kernel_and_hypervisor)
    attributes = ctypes.create_string_buffer(head.ljust(size, b"\0"), size)
    return int(ctypes.CDLL(None).syscall(_PERF_EVENT_OPEN, attributes, 0, -1, -1, 0))


def work_of(call: Callable[[], Any]) -> int:
    """Return the work of `call`, in instructions or in calls of functions. Exceptions of `call` are ignored."""
    counter = _open_counter()
    collects = gc.isenabled()
    gc.disable()  # a garbage collection visits all objects of the process
    try:
        if counter < 0:
            return _calls_of(call)
        before = _read(counter)
        with contextlib.suppress(Exception):
            call()
        return _read(counter) - before
    finally:
        if counter >= 0:
            os.close(counter)
        if collects:
            gc.enable()


def _read(counter: int) -> int:
    return int.from_bytes(os.read(counter, 8), sys.byteorder)


def _calls_of(call: Callable[[], Any]) -> int:
    count = 0

    def on_event(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        with contextlib.suppress(Exception):
            call()
    finally:
        sys.setprofile(None)
    return count


def grows_evenly(work: Callable[[int], Callable[[], Any]], n: int) -> bool:
    """Return whether the work grows in proportion to `n`: four times `n` takes about four times the work, not sixteen times."""
    work_of(work(n))  # the work that is done only once: caches, imports
    few, many = (work_of(work(count)) for count in (n, 4 * n))
    assert few > 0
    return many < 7 * few
