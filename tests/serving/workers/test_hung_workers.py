"""A worker that hangs is killed; a worker that waits for a CPU is not, but its connections go to the others."""

import asyncio
import os
import signal
import subprocess
from typing import Any

import pytest

from serving.resources.process_activity import not_waiting_s, parse_activity
from serving.workers.link.shared_page import SharedPage
from serving.workers.worker_process import WorkerProcess
from tests.serving.busy_processes import BUSY, IDLE, running, starved, state_of
from tests.support.serving_process import wait_until

# /proc/PID/stat of one worker: at first, and then each time a second later
RUNS = b"812 (python (3)) R 1 812 1 0 -1 4194304 9341 0 7 0 150 50 0 0 20 0 4 0 88 1 1"
WAITED = b"812 (python (3)) R 1 812 1 0 -1 4194304 9341 0 7 0 151 50 0 0 20 0 4 0 88 1 1"
LOOPED = b"812 (python (3)) R 1 812 1 0 -1 4194304 9341 0 7 0 240 60 0 0 20 0 4 0 88 1 1"
SLEPT = b"812 (python (3)) S 1 812 1 0 -1 4194304 9341 0 7 0 150 50 0 0 20 0 4 0 88 1 1"
STOPPED = b"812 (python (3)) T 1 812 1 0 -1 4194304 9341 0 7 0 150 50 0 0 20 0 4 0 88 1 1"


@pytest.fixture(name="page")
def shared_page() -> SharedPage:
    page, descriptor = SharedPage.create(1)
    os.close(descriptor)
    return page


def worker_of(process: "subprocess.Popen[bytes]", page: SharedPage) -> WorkerProcess:
    """Return a worker whose process is `process`. It has listened, and has given no heartbeat since."""

    async def made() -> WorkerProcess:
        unused: Any = None
        return WorkerProcess(1, unused, page, unused)

    worker = asyncio.run(made())
    worker._process, worker._pidfd = process, os.pidfd_open(process.pid)
    worker.ready.set_result(None)
    return worker


@pytest.mark.parametrize(
    ("now", "seconds"),
    [(WAITED, 0.01), (LOOPED, 1.0), (SLEPT, 1.0), (STOPPED, 1.0)],
    ids=lambda value: str(value)[-20:],
)
def test_only_a_runnable_process_without_cpu_time_waits_for_a_cpu(now: bytes, seconds: float) -> None:
    assert not_waiting_s(parse_activity(RUNS), parse_activity(now), 1.0) == pytest.approx(seconds)


def test_a_worker_that_gets_no_cpu_is_not_killed(page: SharedPage) -> None:
    with starved() as process:
        worker = worker_of(process, page)
        worker.beat(1.0, 60.0)
        for _ in range(10):
            worker.beat(5.0, 60.0)
        assert process.poll() is None
        assert worker._reason == ""
        assert worker._silent_s > 50.0  # so the core accepts its connections


def test_a_worker_that_is_stopped_is_killed(page: SharedPage) -> None:
    with running(BUSY) as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T", what="it is stopped")
        worker = worker_of(process, page)
        for _ in range(3):
            worker.beat(5.0, 60.0)
        assert process.wait() == -signal.SIGKILL
        assert worker._reason == "gave no sign of life for 10 s and was killed"


def test_a_worker_that_sleeps_for_ever_is_killed(page: SharedPage) -> None:
    with running(IDLE) as process:
        wait_until(lambda: state_of(process.pid) == "S", what="it sleeps")
        worker = worker_of(process, page)
        for _ in range(3):
            worker.beat(5.0, 60.0)
        assert process.wait() == -signal.SIGKILL


def test_a_worker_that_hangs_in_a_loop_of_its_own_is_killed(page: SharedPage) -> None:
    with running(BUSY) as process:
        worker = worker_of(process, page)

        def killed() -> bool:
            worker.beat(5.0, 0.2)
            return process.poll() is not None

        wait_until(killed, what="its end")
        assert process.wait() == -signal.SIGKILL
