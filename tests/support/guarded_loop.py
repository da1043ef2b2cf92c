"""A server whose event loop is watched: it notes each call of its thread that opens, locks, renames or syncs files.

with guarded_server(folder, repository, *flags) as (server, calls):
    ...
assert calls() == []

Allowed are files that cannot wait for a disk or a network:
* /proc and /sys, which the kernel generates, and /dev/shm and memory files, which are in memory;
* the files of imports and of the lines in tracebacks, once for each module.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.serving_process import ROOT, ServerProcess

GUARD = ROOT / "tests" / "support" / "loop_guard"
MEMORY = ("/proc/", "/sys/", "/dev/shm/", "/dev/null")
ONCE = ("<frozen importlib", "linecache.py")

Calls = Callable[[], list[str]]


@contextlib.contextmanager
def guarded_server(
    folder: Path, repository: Path, *flags: str, wait: str = "ready"
) -> Iterator[tuple[ServerProcess, Calls]]:
    """Yield the server, and a function that returns a line for each place where its loop used a file while it served."""
    log = folder / "loop-guard"
    environment = {"LOOP_GUARD": str(log), "PYTHONPATH": f"{GUARD}:{ROOT}"}
    with ServerProcess(repository, *flags, wait=wait, environment=environment) as server:
        begun = log.stat().st_size
        assert begun, "the guard sees what is read while the server starts"
        yield server, lambda: _calls(log.read_bytes()[begun:])


def _calls(noted: bytes) -> list[str]:
    found = dict.fromkeys(_shown(json.loads(line)) for line in noted.splitlines())
    return [line for line in found if line]


def _shown(call: dict[str, str | list[str]]) -> str:
    what, path, stack = call["what"], str(call["path"]), call["stack"]
    if path.startswith(MEMORY) or any(part in frame for frame in stack for part in ONCE):
        return ""
    if what == "os.truncate" and path.isdigit():  # a new memory file
        return ""
    own = [
        frame.removeprefix(f"{ROOT}/") for frame in stack if frame.startswith(str(ROOT)) and "loop_guard" not in frame
    ]
    return f"{what} {path}: {' < '.join(own[:4])}"
