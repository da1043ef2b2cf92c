"""`python -m serving` under valgrind, which lacks process descriptors before its version 3.21 (Debian 12 has 3.19).

    valgrind ... python -m benchmarks.instructions.under_valgrind [flags of the server]

If `pidfd_open` fails, a pipe replaces the descriptor: a thread waits for the process and then closes the other end, so that the
pipe can be polled like a real descriptor. Programs are some fifty times slower under valgrind, so the time limits in BOUNDS are
raised, too.
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

# The time limits that decide on which thread the server runs a batch, and how many batches may wait for that thread; and the
# pause between two looks at captured requests, because their writing is counted on its own (benchmarks.capture_cost).
BOUNDS = (
    ("serving.captures.captures", "WORK_S"),
    ("repository.config.inline_execution", "DEFAULT_US"),
    ("serving.execution.instance", "AHEAD_NS"),
    ("serving.scheduling.instance_scheduler", "TURN_NS"),
    ("serving.resources.loop_time", "BURST_NS"),
)
SLOWER = 1000  # the factor for these limits, so large that a busy machine cannot change the counted path
_processes: dict[int, int] = {}  # descriptor of the pipe -> process id


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
