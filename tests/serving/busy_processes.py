"""Processes that use a CPU, wait for one, or do nothing, for tests of what tells them apart."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

CPU = min(os.sched_getaffinity(0))
BUSY = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); print(flush=True)\nwhile True: pass"
# Beside others it has a three-hundredth of its CPU.
STARVED = f"import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); {BUSY}"
IDLE = "import signal; print(flush=True); signal.pause()"


@contextmanager
def running(code: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", code, str(CPU)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextmanager
def starved() -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that gets almost no CPU time."""
    with running(STARVED) as process, ExitStack() as others:
        for _ in range(4):
            others.enter_context(running(BUSY))
        yield process


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
