"""Heartbeats of the processes that listen on no port: each touches a file of its own, which `up` and the pages read.

A process touches it from where its work is done (an event loop, the worker's consumer), so that one that is stopped, blocked or
in a deadlock falls silent. A file needs neither the database nor free space on the disk.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from django.conf import settings

HEARTBEAT_S = 2.0
# Pages say so then; `up` waits for longer before it replaces the process.
SILENT_AFTER_S = 15.0

# name -> what people call it, and what stands still without it
PROCESSES = {
    "up": ("supervisor", "a process that ends is not started again"),
    "watch": ("watcher", "models are neither loaded nor unloaded, and states may be old"),
    "worker": ("worker", "jobs wait"),
}


def beat(name: str) -> None:
    """A folder that cannot be written costs the heartbeat, not the process."""
    with suppress(OSError):
        _path(name).touch()


def forget(name: str) -> None:
    """It ends in good order, or what an earlier run left is no word of this one."""
    _path(name).unlink(missing_ok=True)


def silent() -> list[str]:
    """A sentence for each process that once ran on this data folder and gives no heartbeat any more."""
    return [
        f"The {title} has not answered for {_spell(age)}: {consequence}."
        for name, (title, consequence) in PROCESSES.items()
        if (age := _age(name)) > SILENT_AFTER_S
    ]


def listener(name: str) -> Callable[[], Awaitable[bool]]:
    """Tells at each call whether the process has given a heartbeat since the last one; the clock on the wall has no say."""
    seen = _modified(name)

    async def answers() -> bool:
        nonlocal seen
        before, seen = seen, _modified(name)
        return seen not in (0, before)

    return answers


def _path(name: str) -> Path:
    return settings.HEARTBEAT_DIR / name


def _modified(name: str) -> int:
    try:
        return _path(name).stat().st_mtime_ns
    except OSError:
        return 0


def _age(name: str) -> float:
    modified = _modified(name)
    return time.time() - modified / 1e9 if modified else 0.0


def _spell(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
