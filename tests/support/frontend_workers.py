"""Runs the tests with frontend workers: TEST_FRONTEND_WORKERS=2 gives two to every server that a test starts as a process.

`make test-workers` sets this variable. Servers inside the process of a test have no frontend workers.
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
