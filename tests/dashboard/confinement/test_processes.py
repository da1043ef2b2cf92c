"""A program reaches no process but its own, and none of its own outlives it."""

import os
import signal

import pytest

from dashboard.confinement.bounds import Bound
from dashboard.confinement.promises import Promise
from tests.dashboard.confinement.conftest import Confined, gone, needs
from tests.support.serving_process import wait_until

pytestmark = needs(Promise.OTHERS, Promise.END)

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for number in range(3): os.close(number)
        time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("target", ["os.getppid()", "PID", "-1", "0"], ids=["parent", "dashboard", "all", "group"])
def test_signals_reach_no_other_process(confined: Confined, target: str) -> None:
    code = "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
    code += f"try: os.kill({target.replace('PID', str(os.getpid()))}, 15)\nexcept OSError: pass\nprint('done')"
    assert confined.run(code).sentence == ""
    assert confined.lines == ["done"]


@pytest.mark.parametrize("pid", ["os.getppid()", "PID", "1"])
def test_other_processes_are_not_traced(confined: Confined, pid: str) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, ctypes.c_long(TARGET), None, None), libc.kill(TARGET, 9) if TARGET > 1 else -1)
"""
    confined.run(code.replace("TARGET", pid.replace("PID", str(os.getpid()))))
    assert confined.lines == ["-1 -1"]


def test_limits_of_other_processes_stay(own: Confined) -> None:
    own.run(f"import resource\nresource.prlimit({os.getppid()}, resource.RLIMIT_CPU, (1, 1))")
    assert "Error" in own.lines[-1]


def test_a_daemon_ends_with_the_program(confined: Confined) -> None:
    assert confined.run(DAEMON).sentence == ""
    assert confined.processes() == []


def test_a_daemon_ends_with_a_program_that_is_ended(confined: Confined) -> None:
    assert confined.run(DAEMON + "time.sleep(600)", limits={"wall_seconds": 1}).bound == Bound.WALL
    assert confined.processes() == []


def test_when_the_check_raises_all_is_gone_first(own: Confined) -> None:
    class Cancelled(Exception):
        pass

    def check() -> None:
        if own.lines:
            assert own.processes() != []
            raise Cancelled

    with pytest.raises(Cancelled):
        own.run(DAEMON + "print('started', flush=True)\ntime.sleep(600)", check=check)
    assert own.processes() == []


def test_when_a_line_is_not_taken_all_is_gone_first(own: Confined) -> None:
    class Full(list[str]):
        def append(self, line: str) -> None:
            raise BufferError

    own.lines = Full()
    with pytest.raises(BufferError):
        own.run(DAEMON + "print('line', flush=True)\ntime.sleep(600)")
    assert own.processes() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_dashboard_is_killed_the_program_ends(confined: Confined, number: signal.Signals) -> None:
    order = confined.order(DAEMON + "print('started', flush=True)\ntime.sleep(600)")
    with confined.runner(order) as runner:
        assert runner.stdout is not None
        assert "started" in runner.stdout.readline()
        assert len(confined.processes()) == 2
        runner.send_signal(number)
    gone(confined)


def test_when_its_guard_is_killed_the_program_ends(confined: Confined) -> None:
    with confined.runner(confined.order(DAEMON + "print('started', flush=True)\ntime.sleep(600)")) as runner:
        assert runner.stdout is not None
        assert "started" in runner.stdout.readline()
        first = min(confined.processes(), key=lambda process: process.create_time()).parent()
        assert first is not None
        guard = wait_until(first.parent)
        guard.kill()
        gone(confined)
        runner.kill()


def test_a_program_is_not_root_and_has_no_capabilities(confined: Confined) -> None:
    code = """
import os
print(os.getuid() != 0, [line for line in open("/proc/self/status").read().splitlines() if line.startswith("CapEff")])
"""
    confined.run(code)
    assert confined.lines == ["True ['CapEff:\\t0000000000000000']"]


def test_a_crash_names_its_signal(own: Confined) -> None:
    ended = own.run("import os\nos.kill(os.getpid(), 11)")
    assert (ended.status, ended.sentence) == (-11, "The program crashed (SIGSEGV).")
