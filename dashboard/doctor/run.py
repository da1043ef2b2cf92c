"""Runs the checks in a process of their own, so that one that hangs neither holds up a page nor stays behind."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import suppress

from dashboard.doctor.report import LINES
from dashboard.doctor.table import CHECKS
from dashboard.shared.environment import BASE_DIR
from dashboard.shared.exceptions import Conflict
from dashboard.web.rest.lines import line

COMMAND = (sys.executable, str(BASE_DIR / "manage.py"), "doctor", f"--{LINES}")
# A check is broken off after its own limit. One that even then says nothing hangs in the kernel.
SILENT_S = max(check.limit_s for check in CHECKS) + 30
_LONGEST_LINE = 1 << 20
_ENDED = "The checks ended too early: run manage.py doctor on this machine, and read what it says."
_HANGS = "A check hangs and was broken off: run manage.py doctor on this machine, and see where it stops."
_running = False


def refuse_second() -> None:
    """Raise Conflict if this process runs the checks already."""
    if _running:
        raise Conflict("the checks are already running; try again when they have ended")


async def findings(silent_s: float = SILENT_S) -> AsyncIterator[bytes]:
    """Yield a line of JSON for each check when it is made; after a failure the last line has `error`.

    If nobody reads on, the checks are broken off.
    """
    global _running
    refuse_second()
    _running = True
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, limit=_LONGEST_LINE, start_new_session=True
        )
        try:
            assert process.stdout is not None
            made = 0
            while True:
                async with asyncio.timeout(silent_s):
                    found = await process.stdout.readline()
                if not found:
                    break
                made += 1
                yield found
            if made < len(CHECKS):
                yield line({"error": _ENDED})
        except TimeoutError:
            yield line({"error": _HANGS})
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    finally:
        _running = False
