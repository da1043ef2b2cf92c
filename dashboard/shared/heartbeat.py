"""Heartbeats of processes that listen on no port: each touches its own file, and `up` and the pages read the file's time.

A process touches the file from the loop that does its work (an event loop, the worker's consumer), so that a stopped, blocked
or deadlocked process becomes silent. Touching a file needs neither the database nor free space on the disk.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from dashboard.shared.changes import HEARTBEATS, note_read

HEARTBEAT_S = 2.0
# After this time the pages report a process as silent; `up` waits longer before it replaces the process.
SILENT_AFTER_S = 15.0

# name -> the process's name for people, and the consequence of its silence
PROCESSES = {
    "up": ("supervisor", "a process that ends is not started again"),
    "watch": ("watcher", "models are neither loaded nor unloaded, and states may be old"),
    "worker": ("worker", "jobs wait"),
    # `watch` gives this one for Redis, if Redis is the queue.
    "queue": ("job queue", "jobs wait, and begin when it answers"),
}


def beat(name: str) -> None:
    """Give a heartbeat. If the folder cannot be written, the heartbeat is lost, but no error is raised."""
    with suppress(OSError):
        _path(name).touch()


def forget(name: str) -> None:
    """Remove the heartbeat of a process that ends normally, or the heartbeat that an earlier run left behind."""
    _path(name).unlink(missing_ok=True)


def silent() -> list[str]:
    """Return a sentence for each process whose last heartbeat is older than SILENT_AFTER_S, unless it never ran."""
    return [
        f"The {title} has not answered for {_spell(_age(name))}: {consequence}."
        for name, (title, consequence) in PROCESSES.items()
        if is_silent(name)
    ]


def ages() -> dict[str, float]:
    """Return the seconds since the last heartbeat of each process that has run."""
    return {name: _age(name) for name in PROCESSES if _modified(name)}


def is_silent(name: str) -> bool:
    note_read(HEARTBEATS)
    unknown = name == "queue" and is_silent("watch")
    return not unknown and _age(name) > SILENT_AFTER_S


def heard_since_last(name: str) -> Callable[[], Awaitable[bool]]:
    """Return a function that returns whether a heartbeat arrived since its previous call. It does not read the clock."""
    seen = _modified(name)

    async def heard() -> bool:
        nonlocal seen
        before, seen = seen, _modified(name)
        return seen not in (0, before)

    return heard


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
        return f"{seconds // 5 * 5:.0f} s"  # rounded, because each change of the sentence is pushed to pages
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
