"""A process that waits for a CPU counts as alive; one that is stopped or sleeps for ever does not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from serving.backends.child.process import Heartbeat
from tests.support.serving_process import wait_until

CPU = min(os.sched_getaffinity(0))
BUSY = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); print(flush=True)\nwhile True: pass"
# Beside others it has a three-hundredth of its CPU.
STARVED = f"import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); {BUSY}"


@contextmanager
def running(code: str) -> Iterator[int]:
    command = [sys.executable, "-c", code, str(CPU)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_process_that_gets_no_cpu_is_alive() -> None:
    heartbeat = Heartbeat()
    with running(STARVED) as starved, ExitStack() as others:
        for _ in range(4):
            others.enter_context(running(BUSY))
        heartbeat.listen(starved, 1.0)
        assert [heartbeat.listen(starved, 100.0) for _ in range(10)] == [0.0] * 10
    heartbeat.close()


def test_a_process_that_is_stopped_is_not() -> None:
    heartbeat = Heartbeat()
    with running(BUSY) as stopped:
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: state_of(stopped) == "T", what="it is stopped")
        before = heartbeat.listen(stopped, 1.0)
        assert [heartbeat.listen(stopped, 100.0) for _ in range(2)] == [before + 100.0, before + 200.0]
    heartbeat.close()


def test_a_process_that_only_waits_is_not() -> None:
    heartbeat = Heartbeat()
    with running("import signal; print(flush=True); signal.pause()") as waits:
        wait_until(lambda: state_of(waits) == "S", what="it waits")
        before = heartbeat.listen(waits, 1.0)
        assert heartbeat.listen(waits, 100.0) == before + 100.0
    heartbeat.close()
