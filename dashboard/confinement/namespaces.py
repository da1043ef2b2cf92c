"""Namespaces: processes, users and network of the program's own (man page namespaces(7))."""

import os

from dashboard.confinement.system_calls import unshare

FLAGS = {"user": 0x10000000, "network": 0x40000000, "pids": 0x20000000}
_RESERVED_PIDS = 301  # once all numbers were given out, the kernel gives out none below; nor does it take a lower bound
_OF_ROOT = 1000


def enter(name: str) -> None:
    """Enter a new namespace; that of users comes first. In that of processes the next child is the first process, and all
    others are killed when it ends."""
    uid, gid = os.getuid(), os.getgid()
    if name == "user" and uid == 0:
        os.setgroups([])
    unshare(FLAGS[name])
    if name == "user":
        write("/proc/self/setgroups", "deny")
        # The program is never root in its namespace, so that it loses all capabilities when it starts.
        write("/proc/self/uid_map", f"{uid or _OF_ROOT} {uid} 1")
        write("/proc/self/gid_map", f"{gid or _OF_ROOT} {gid} 1")


def can_bound_pids() -> bool:
    """Return whether each namespace of processes has a bound of its own. In older kernels it is the whole machine's."""
    return _kernel() >= (6, 14)


def counts_users_processes() -> bool:
    """Return whether RLIMIT_NPROC counts the processes of the namespace alone; root's are never counted."""
    return os.getuid() != 0 and _kernel() >= (5, 14)


def bound_pids(processes: int) -> None:
    """Bound the processes and threads of this process's new namespace. At first there may be 300 more."""
    write("/proc/sys/kernel/pid_max", str(_RESERVED_PIDS + processes))


def write(path: str, text: str) -> None:
    """Write a setting of the kernel."""
    with open(path, "w") as file:
        file.write(text)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)))
