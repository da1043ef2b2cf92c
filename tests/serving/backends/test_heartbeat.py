"""A process that waits for a CPU counts as alive; one that is stopped or sleeps for ever does not."""

import os
import signal

from serving.backends.child.process import Heartbeat
from tests.serving.busy_processes import BUSY, IDLE, running, starved, state_of
from tests.support.serving_process import wait_until


def test_a_process_that_gets_no_cpu_is_alive() -> None:
    heartbeat = Heartbeat()
    with starved() as process:
        heartbeat.listen(process.pid, 1.0)
        assert [heartbeat.listen(process.pid, 100.0) for _ in range(10)] == [0.0] * 10
    heartbeat.close()


def test_a_process_that_is_stopped_is_not() -> None:
    heartbeat = Heartbeat()
    with running(BUSY) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(stopped.pid) == "T", what="it is stopped")
        before = heartbeat.listen(stopped.pid, 1.0)
        assert [heartbeat.listen(stopped.pid, 100.0) for _ in range(2)] == [before + 100.0, before + 200.0]
    heartbeat.close()


def test_a_process_that_only_waits_is_not() -> None:
    heartbeat = Heartbeat()
    with running(IDLE) as waits:
        wait_until(lambda: state_of(waits.pid) == "S", what="it waits")
        before = heartbeat.listen(waits.pid, 1.0)
        assert heartbeat.listen(waits.pid, 100.0) == before + 100.0
    heartbeat.close()
