"""`python -m serving` under valgrind, which knows no process descriptors before its version 3.21 (Debian 12 has 3.19).

    valgrind ... python -m benchmarks.instructions.under_valgrind [flags of the server]

Where `pidfd_open` fails, a pipe stands in for the descriptor: a thread waits for the process and closes the other end, so that
it can be polled as the real one can. Everything is some fifty times slower than it is, so that what counts as a short
execution is longer too.
"""

import importlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from serving.compiled import loading

# The times by which the server decides where a batch runs, and how many may wait there.
BOUNDS = (
    ("repository.config.inline_execution", "DEFAULT_US"),
    ("serving.execution.instance", "AHEAD_NS"),
    ("serving.scheduling.instance_scheduler", "TURN_NS"),
    ("serving.resources.loop_time", "BURST_NS"),
)
SLOWER = 1000  # at least: a busy machine must not change which way is counted
_processes: dict[int, int] = {}  # descriptor that stands in -> process id


def main() -> None:
    loading.use()
    for place, name in BOUNDS:
        module = importlib.import_module(place)
        setattr(module, name, getattr(module, name) * SLOWER)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        os.pidfd_open = _open
        os.waitid = _waitid(os.waitid)
        signal.pidfd_send_signal = lambda descriptor, number, *_: os.kill(_processes[descriptor], number)
    sys.argv[0] = "serving"
    runpy.run_module("serving", run_name="__main__", alter_sys=True)


def _open(pid: int, flags: int = 0) -> int:
    read, write = os.pipe()
    _processes[read] = pid
    threading.Thread(target=_close_when_it_ends, args=(pid, write), daemon=True).start()
    return read


def _close_when_it_ends(pid: int, descriptor: int) -> None:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass
    os.close(descriptor)


def _waitid(real: Callable[[int, int, int], Any]) -> Callable[[int, int, int], Any]:
    def waitid(kind: int, which: int, options: int) -> Any:
        return real(os.P_PID, _processes[which], options) if kind == os.P_PIDFD else real(kind, which, options)

    return waitid


if __name__ == "__main__":
    main()
