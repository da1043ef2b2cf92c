"""The promises about a confined program, the means of this machine to keep them, and what is missing where one is not kept."""

import marshal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path

from dashboard.confinement import namespaces
from dashboard.shared.exceptions import Conflict, Unavailable

_ROOT = Path(__file__).resolve().parents[2]
_START = "import sys; sys.path.append(sys.argv.pop(1)); from dashboard.confinement.launcher import main; main()"
LAUNCHER = [sys.executable, "-I", "-S", "-c", _START, str(_ROOT)]

_FILES_REMEDY = "Landlock in the kernel: Linux 6.2 or newer, with landlock among its security modules (lsm=)"
_SECCOMP_REMEDY = "seccomp filters: Linux on x86_64 or aarch64, in a container that allows them"
_PIDS_REMEDY = (
    "a namespace of processes: the system must allow user namespaces to the user of the dashboard "
    "(user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns, or the container's security profile)"
)


class Promise(StrEnum):
    """What a confined program cannot do. The values are names for people and for settings."""

    READS = "cannot read other files"
    WRITES = "cannot write elsewhere"
    CONNECTIONS = "cannot open a connection"
    PROCESSES = "cannot start more than its number of processes"
    MEMORY = "cannot take more than its memory"
    OTHERS = "cannot signal or read other processes"
    END = "ends with its parent"


class Unprotected(Conflict):
    """The machine does not keep promises that the caller has not given up. missing: a sentence for each of them."""

    def __init__(self, missing: Mapping[Promise, str]) -> None:
        sentences = "; ".join(f"{promise}: {sentence}" for promise, sentence in missing.items())
        super().__init__(f"this machine cannot confine the program ({sentences})")
        self.missing = missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the machine has. landlock: the version of the interface, 0 without it. pid_bound: each namespace of processes has
    a bound of its own. counts_processes: RLIMIT_NPROC counts the processes of the user namespace alone."""

    landlock: int = 0
    seccomp: bool = False
    user: bool = False
    network: bool = False
    pids: bool = False
    pid_bound: bool = False
    counts_processes: bool = False


@dataclass(frozen=True)
class Protections:
    """The means of a machine, and the promises that they keep."""

    means: Means

    @cached_property
    def missing(self) -> Mapping[Promise, str]:
        """A sentence for each promise that is not kept."""
        return {promise: f"needs {remedy}" for promise, remedy in self._missing()}

    def require(self, given_up: Sequence[Promise] = ()) -> None:
        """Raise Unprotected unless all promises are kept but those that were given up."""
        if missing := {promise: sentence for promise, sentence in self.missing.items() if promise not in given_up}:
            raise Unprotected(missing)

    def _missing(self) -> Iterator[tuple[Promise, str]]:
        means = self.means
        if means.landlock < 1:
            yield Promise.READS, _FILES_REMEDY
        if means.landlock < 3:  # older ones let a program truncate files
            yield Promise.WRITES, _FILES_REMEDY
        elif not means.seccomp:  # Landlock lets a program change modes and times
            yield Promise.WRITES, _SECCOMP_REMEDY
        if not means.seccomp:
            yield Promise.CONNECTIONS, _SECCOMP_REMEDY
        if not ((means.pids and means.pid_bound) or (means.user and means.counts_processes)):
            yield Promise.PROCESSES, "user namespaces under a user other than root, or Linux 6.14 or newer"
        if not sys.platform.startswith("linux"):
            yield Promise.MEMORY, "Linux"
        if not means.pids:
            yield Promise.OTHERS, _PIDS_REMEDY
        if not (means.pids or means.landlock >= 6):  # then the program cannot signal the guard, which ends it
            yield Promise.END, _PIDS_REMEDY


@cache
def protections() -> Protections:
    """Return what this machine has, found by trying it.

    Raises Unavailable if the trial was killed; the next call repeats it.
    """
    trial = subprocess.run(LAUNCHER, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if trial.returncode < 0:
        raise Unavailable("the program that tries how this machine confines programs was killed: try again")
    means = marshal.loads(trial.stdout) if trial.stdout else {}
    return Protections(Means(counts_processes=namespaces.counts_users_processes(), **means))
