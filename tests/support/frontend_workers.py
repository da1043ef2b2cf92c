"""The suite with frontend workers: with TEST_FRONTEND_WORKERS=2 every server that a test starts as a process has two.

`make test-workers` sets it. Servers inside a test's own process have none.
"""

import os
from pathlib import Path

WORKERS = int(os.environ.get("TEST_FRONTEND_WORKERS") or 0)
FLAGS = [f"--frontend-workers={WORKERS}"] if WORKERS else []
_PROGRAM = b"serving.workers.program"


def is_frontend_worker(pid: int) -> bool:
    """Return whether a process is a frontend worker of some server."""
    try:
        return _PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
