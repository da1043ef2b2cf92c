"""Processes under valgrind's callgrind, and the instructions that each ran. Instructions of the kernel are not counted."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from repository.core.server_version import is_compiled
from serving.compiled.loading import VARIABLE
from tests.support.serving_process import ROOT, ServerProcess, descendants

# These variables fix everything that could change the counts from run to run.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
START_TIMEOUT_S = 300.0
_COMMAND_TIMEOUT_S = 120.0
_SUMMARY = re.compile(r"^summary: (\d+)", re.MULTILINE)


def check_tools() -> None:
    """End the program with an error message if valgrind is missing."""
    if shutil.which("valgrind") is None or shutil.which("vgdb") is None:
        sys.exit("valgrind is missing: sudo apt-get install valgrind")


def valgrind_command(folder: Path, *command: str) -> list[str]:
    """Return the command that runs `command` and its children under valgrind. Nothing is counted until `count_from_now`.

    folder: the folder for valgrind's profiles.
    """
    return [
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        "--trace-children=yes",
        "--fair-sched=yes",
        f"--callgrind-out-file={folder}/%p",
        f"--log-file={folder}/%p.log",
        *command,
    ]


def count_from_now(pid: int) -> None:
    """Start counting the instructions of a process, which makes it several times slower."""
    _tell(pid, "instrumentation on")


def take_count(pid: int, folder: Path) -> int:
    """Return the instructions of all threads of the process since the last call."""
    _tell(pid, "dump")
    (dump,) = folder.glob(f"{pid}.[0-9]*")
    found = _SUMMARY.search(dump.read_text())
    dump.unlink()
    if found is None:
        raise RuntimeError(f"valgrind wrote no summary for process {pid}")
    return int(found[1])


class CountedServer(ServerProcess):
    """The inference server under valgrind, which counts after `start_counting`. compiled: whether modules run compiled."""

    def __init__(self, repository: Path, folder: Path, *flags: str, compiled: bool = False) -> None:
        environment = ENVIRONMENT | {VARIABLE: "yes" if compiled else "no", "METRICS_LOCATION": str(folder)}
        super().__init__(repository, *flags, environment=environment, timeout_s=START_TIMEOUT_S)
        self._profiles = folder
        self._compiled = compiled

    def start_counting(self) -> None:
        """Start the count. End the program with a sentence if the server does not run the wanted kind of modules."""
        runs = is_compiled(self.get("/v2")[1]["version"])
        if runs != self._compiled:
            sys.exit(f"the server runs {'compiled' if runs else 'interpreted'}: its sources were changed meanwhile")
        for pid in self._pids():
            count_from_now(pid)

    def take_counts(self) -> tuple[int, int]:
        """Return the instructions since the last call, of the server and of its child processes."""
        counts = [take_count(pid, self._profiles) for pid in self._pids()]
        return counts[0], sum(counts[1:])

    def _pids(self) -> list[int]:
        return [self.pid, *sorted(descendants(self.pid))]

    def _command(self) -> list[str]:
        python, _, _, *flags = super()._command()
        return valgrind_command(self._profiles, python, "-m", "benchmarks.instructions.under_valgrind", *flags)


def count_program(folder: Path, module: str) -> int:
    """Return the instructions that a module runs between its first line of output and its second.

    The module waits for a line of input after the first line.
    """
    command = valgrind_command(folder, sys.executable, "-m", module)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        count_from_now(program.pid)
        take_count(program.pid, folder)
        print("go on", file=program.stdin, flush=True)
        program.stdout.readline()
        count = take_count(program.pid, folder)
        program.stdin.close()
    return count


def _tell(pid: int, command: str) -> None:
    """Send a command to callgrind's monitor."""
    done = subprocess.run(
        ["vgdb", f"--pid={pid}", *command.split()], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S
    )
    if done.returncode:
        raise RuntimeError(f"valgrind did not take {command!r} for process {pid}: {done.stderr.strip()}")
