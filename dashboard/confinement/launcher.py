"""The launcher: it confines itself, becomes the program, and ends all that the program has started.

It is three processes, as far as the machine has the means. The *guard* stays outside: it ends the rest when the program has
ended, when the dashboard asks for it, and when the dashboard is gone. The *first process* of the new namespace waits for
processes whose parents have ended; when it ends, the kernel kills all others. The *program* is its child. Without a namespace
of processes, the guard starts the program itself.

The dashboard and the guard share a socket: the order goes in, and what became of it comes out, a line for each answer. The
modules that this one imports decide how long a program takes to start, so they are few.
"""

import marshal
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from dashboard.confinement import landlock, namespaces, seccomp
from dashboard.confinement.system_calls import control

_PARENT_DEATH_SIGNAL, _DROP_CAPABILITY, _CHILD_SUBREAPER, _NO_NEW_PRIVILEGES = 1, 24, 36, 38  # of prctl(2)
_LAUNCHER_PROCESSES = 2  # the guard and the first process count as processes of the namespace as well
_NICENESS = 10


class Order:
    """What the dashboard wants to be run. limits: by the names of `bounds.Limits`; means: by those of `promises.Means`."""

    command: list[str]
    environment: dict[str, str]
    directory: str
    folder: str
    reads: list[str]
    devices: list[str]
    limits: dict[str, int]
    means: dict[str, int]

    def __init__(self, link: int) -> None:
        data = os.read(link, 8)
        while len(data) < 8 + int.from_bytes(data[:8]):
            data += os.read(link, 1 << 16) or sys.exit()
        vars(self).update(marshal.loads(data[8:]))


def main() -> None:
    """Carry out the order that comes over the socket with the number in `sys.argv`. Without a socket, print the means."""
    if len(sys.argv) < 2:
        sys.stdout.buffer.write(marshal.dumps(_means()))
        return
    link = int(sys.argv[1])
    os.set_inheritable(link, False)
    order = Order(link)
    try:
        for name in namespaces.FLAGS:
            if order.means[name]:
                namespaces.enter(name)
        _if_possible(control, _CHILD_SUBREAPER, 1)
        woken = _woken_by_children()
        child = os.fork()
    except OSError as error:
        _tell(link, f"refused the program could not be confined: {error}")
        return
    if child == 0:
        _start(order, link)
    _guard(child, link, woken)
    _tell(link, f"status {_end_all(child, order)}")


def _means() -> dict[str, int]:
    found: dict[str, int] = dict.fromkeys(namespaces.FLAGS, False)
    for name in found:
        with suppress(OSError):
            namespaces.enter(name)
            found[name] = True
    return {**found, "landlock": landlock.version(), "seccomp": seccomp.available(), "pid_bound": _pid_bound(found)}


def _pid_bound(found: dict[str, int]) -> bool:
    if not found["pids"] or not namespaces.can_bound_pids():
        return False
    child = os.fork()
    if child == 0:
        try:
            namespaces.bound_pids(0)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


# -- the guard ------------------------------------------------------------------------------------------------------


def _woken_by_children() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable)
    return readable


def _guard(child: int, link: int, woken: int) -> None:
    """Wait until the child has ended, the dashboard asks for the end, or the dashboard is gone."""
    while True:
        ready, _, _ = select.select([link, woken], [], [])
        if link in ready:
            return
        os.read(woken, 4096)
        # The child stays a zombie, so that its number belongs to no other process when its group is killed.
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child:
                return
            os.waitpid(ended.si_pid, 0)


def _end_all(child: int, order: Order) -> int:
    """Kill the child and all that is left of its descendants, which become the guard's children. Return the child's status."""
    child_status = 0
    os.killpg(child, signal.SIGKILL)
    while True:
        if not order.means["pids"]:
            for pid in _descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return child_status
        if pid == child:
            child_status = os.waitstatus_to_exitcode(status)


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with suppress(OSError):
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _if_possible(act: Callable[..., object], *arguments: object) -> None:
    """Do what only helps: no promise depends on it alone."""
    with suppress(OSError):
        act(*arguments)


def _tell(link: int, answer: str) -> None:
    with suppress(OSError):  # the dashboard may be gone
        os.write(link, answer.encode() + b"\n")


# -- the first process, and the program -----------------------------------------------------------------------------


def _start(order: Order, link: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _if_possible(control, _PARENT_DEATH_SIGNAL, signal.SIGKILL)
        # When memory runs out, the kernel kills the program before all others.
        _if_possible(namespaces.write, "/proc/self/oom_score_adj", "1000")
        if order.means["pids"]:
            if order.means["pid_bound"]:
                namespaces.bound_pids(_most_processes(order))
            if program := os.fork():
                _wait_for(program, link)
        _become_program(order)
    except OSError as error:
        _tell(link, f"refused the program could not be started: {error}")
    finally:
        os._exit(127)


def _wait_for(program: int, link: int) -> None:
    while True:
        pid, status = os.wait()
        if pid == program:
            _tell(link, f"status {os.waitstatus_to_exitcode(status)}")
            os._exit(0)


def _become_program(order: Order) -> None:
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.chdir(order.directory)
    os.nice(_NICENESS)
    _limit_resources(order)
    _if_possible(control, _NO_NEW_PRIVILEGES, 1)  # without it, the next two fail
    for capability in range(64):
        _if_possible(control, _DROP_CAPABILITY, capability)
    if abi := order.means["landlock"]:
        landlock.restrict(abi, _rules(order))
    if order.means["seccomp"]:
        seccomp.restrict()
    os.execvpe(order.command[0], order.command, order.environment)


def _limit_resources(order: Order) -> None:
    limits = order.limits
    _limit(resource.RLIMIT_DATA, limits["memory_bytes"])
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"], grace=1)
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_CORE, 0)
    if order.means["user"] and namespaces.counts_users_processes():
        _limit(resource.RLIMIT_NPROC, _most_processes(order))


def _most_processes(order: Order) -> int:
    """Return how many processes and threads the kernel allows: more than the program may have.

    The dashboard ends a program that has more than it may. If the kernel refused them exactly there, a program that forks for
    ever would never have more, and would keep the machine busy until its time is over.
    """
    return 2 * order.limits["processes"] + _LAUNCHER_PROCESSES


def _limit(kind: int, value: int, grace: int = 0) -> None:
    hard = resource.getrlimit(kind)[1]
    bounds = [value, value + grace] if hard == resource.RLIM_INFINITY else [min(value, hard), min(value + grace, hard)]
    resource.setrlimit(kind, (bounds[0], bounds[1]))


def _rules(order: Order) -> list[tuple[str, int]]:
    return [
        *((path, landlock.READ) for path in order.reads),
        *((path, landlock.DEVICE) for path in order.devices),
        (order.folder, landlock.WRITE),
    ]
