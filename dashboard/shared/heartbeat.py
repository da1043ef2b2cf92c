"""Heartbeats of processes: each touches its own file, and `up` and the pages read the file's time.

A process touches the file from the loop that does its work (an event loop, the worker's consumer), so that a stopped, blocked
or deadlocked process becomes silent. Touching a file needs neither the database nor free space on the disk. The processes of
other machines, with other data folders on the same PostgreSQL, are in one more file, which postgresql.relay writes.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.shared.changes import HEARTBEATS, note_read

HEARTBEAT_S = 2.0
# After this time the pages report a process as silent; `up` waits longer before it replaces the process.
SILENT_AFTER_S = 15.0
# A process that has not given a heartbeat for this time is looked for.
MISSED_S = 2 * HEARTBEAT_S
# A process that was killed is listed for this time, unless another of its name starts on its machine.
FORGOTTEN_AFTER_S = 3600.0

# name -> the process's name for people, and the consequence of its silence
PROCESSES = {
    "up": ("supervisor", "a process that ends is not started again"),
    "web": ("dashboard", "its pages do not load"),
    "watch": ("watcher", "models are neither loaded nor unloaded, and states may be old"),
    "worker": ("worker", "jobs wait"),
    "queue": ("job queue", "jobs wait, and begin when it answers"),
    "bucket": ("bucket of the repository", "releases do not change until it answers; what is loaded serves"),
}
# These are no processes: `watch` gives their heartbeats, for Redis if it is the queue, and for the bucket if there is one.
ENGINES = ("queue", "bucket")
_SHARED = ("watch", "worker")  # another process of the name does the work of a silent one
_OTHERS = "others"  # the file with the processes of other machines
HOST = socket.gethostname()
STARTED_S = int(time.time())  # when this process started, in unix time
_given = threading.Event()  # set when this process has given a heartbeat
_over = threading.Event()  # set when this process ends: a heartbeat that is still scheduled must not come back


@dataclass(frozen=True, slots=True)
class Process:
    """A process that gave a heartbeat. since: Unix time of its start in seconds; age: seconds since its last heartbeat, as far
    as this machine knows; here: whether it runs on this data folder; ended: whether its own machine knows that it has ended."""

    name: str
    host: str
    pid: int
    since: int
    age: float
    here: bool = True
    ended: bool = False

    @property
    def key(self) -> str:
        return f"{self.host} {self.pid} {self.since}"

    @property
    def silent(self) -> bool:
        return self.age > SILENT_AFTER_S

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self.since, UTC)

    @property
    def title(self) -> str:
        return PROCESSES[self.name][0]


@dataclass(frozen=True, slots=True)
class Silence:
    """A process, or one of ENGINES, that does not answer. subject: its key; who: its name for people; age: seconds."""

    subject: str
    who: str
    age: float
    consequence: str


def beat(name: str) -> None:
    """Give a heartbeat. If the folder cannot be written, the heartbeat is lost, but no error is raised."""
    path = settings.HEARTBEAT_DIR / f"{name}.{os.getpid()}.{os.getppid()}.{STARTED_S}"
    if _over.is_set():
        return
    with suppress(OSError):
        if not path.exists():
            forget_dead(name)
        path.touch()
        _given.set()


def beat_from_loop(name: str, call_soon: Callable[[Callable[[], None]], object]) -> None:
    """Start a thread that schedules each heartbeat on a loop by its function `call_soon`, until the process ends."""

    def run() -> None:
        while True:
            with suppress(RuntimeError):  # the loop is closed, because the process ends
                call_soon(lambda: beat(name))
            time.sleep(HEARTBEAT_S)

    threading.Thread(target=run, name="heartbeat", daemon=True).start()


def forget() -> None:
    """Remove the heartbeats of this process, which ends normally."""
    _over.set()
    for path, one in _files():
        if one.pid == os.getpid():
            path.unlink(missing_ok=True)


def forget_dead(*names: str) -> None:
    """Remove the heartbeats that dead processes of these names left in this data folder."""
    for path, one in _files():
        if one.name in names and not lives(one):
            path.unlink(missing_ok=True)


def processes() -> list[Process]:
    """Return the known processes of all machines, without those that died long ago. ENGINES are none."""
    note_read(HEARTBEATS)
    return sorted((one for one in _known() if one.name not in ENGINES), key=lambda one: (one.name, one.host, one.pid))


def processes_here() -> list[Process]:
    """Return the processes of this data folder, with the heartbeats of ENGINES."""
    found = [one if one.age <= MISSED_S else replace(one, ended=not lives(one)) for _, one in _files()]
    return [one for one in found if one.age <= FORGOTTEN_AFTER_S or not one.ended]


def own_key() -> str:
    """Return the key of this process; "" if it has given no heartbeat."""
    return f"{HOST} {os.getpid()} {STARTED_S}" if _given.is_set() else ""


def has_ended(key: str) -> bool:
    """Return whether a process that gave heartbeats is known to have ended: its machine says so, or lists it no more."""
    kept = processes_of_others()
    if kept and abs(time.time() - kept.get("told", 0.0)) > SILENT_AFTER_S:
        return False  # the other machines are not heard
    return all(one.ended for one in _known() if one.key == key)


def processes_of_others(found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what `postgresql.relay` kept last; first keep `found`, if it is given."""
    path = settings.HEARTBEAT_DIR / _OTHERS
    if found is not None:
        new = path.with_name(f"{_OTHERS}-{os.getpid()}")
        new.write_text(json.dumps(found))
        new.replace(path)
        return found
    with suppress(OSError, ValueError):
        kept: dict[str, Any] = json.loads(path.read_text())
        return kept
    return {}


def silent() -> list[str]:
    """Return a sentence for each process whose last heartbeat is older than SILENT_AFTER_S, unless it never ran."""
    return [f"The {one.who} has not answered for {_spell(one.age)}: {one.consequence}." for one in silences()]


def silences() -> list[Silence]:
    """Return who is silent. A process is named with its number if others of its name are known, and with its machine if other
    machines are known."""
    note_read(HEARTBEATS)
    found = _known()
    several = len({(one.host, one.here) for one in found}) > 1
    silent = [_silence(one, found, several) for one in found if one.name not in ENGINES and one.silent]
    for name in filter(is_silent, ENGINES):
        age = min(one.age for one in found if one.name == name)
        silent.append(Silence(name, PROCESSES[name][0], age, PROCESSES[name][1]))
    return sorted(silent, key=lambda one: one.subject)


def is_silent(name: str) -> bool:
    """Return whether processes of a name are known, on any machine, and all of them are silent."""
    note_read(HEARTBEATS)
    if name in ENGINES and is_silent("watch"):  # which would give it
        return False
    found = [one.silent for one in _known() if one.name == name]
    return bool(found) and all(found)


def heard_since_last(name: str) -> Callable[[], Awaitable[bool]]:
    """Return a function that returns whether a heartbeat arrived since its previous call from a child of this process. It does
    not read the clock."""
    seen = _modified(name)

    async def heard() -> bool:
        nonlocal seen
        before, seen = seen, _modified(name)
        return any(before.get(file) != modified for file, modified in seen.items())

    return heard


def _silence(one: Process, found: list[Process], several: bool) -> Silence:
    alike = [other for other in found if other.name == one.name]
    number = f" {one.pid} on {one.host}" if several else f" {one.pid}" if alike[1:] else ""
    goes_on = one.name in _SHARED and not all(other.silent for other in alike)
    what = "others do its work" if goes_on else PROCESSES[one.name][1]
    return Silence(f"{one.name}{number}", f"{one.title}{number}", one.age, what)


def _known() -> list[Process]:
    kept = processes_of_others()
    recent = abs(time.time() - kept.get("at", 0.0)) < FORGOTTEN_AFTER_S
    others = [
        Process(name, host, pid, since, age, here=False, ended=any(ended))
        for name, host, pid, since, age, *ended in kept.get("processes", ())
    ]
    return [*processes_here(), *(others if recent else ())]


def _files() -> Iterator[tuple[Path, Process]]:
    now = time.time()
    with suppress(OSError):
        for entry in os.scandir(settings.HEARTBEAT_DIR):
            name, *numbers = entry.name.split(".")
            with suppress(OSError, ValueError):
                if name in PROCESSES:
                    pid, _, since = map(int, numbers)
                    yield Path(entry.path), Process(name, HOST, pid, since, now - entry.stat().st_mtime)


def _modified(name: str) -> dict[str, int]:
    """Return the times of the heartbeats of this process's children."""
    found = {}
    for path in settings.HEARTBEAT_DIR.glob(f"{name}.*.{os.getpid()}.*"):
        with suppress(OSError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def lives(one: Process) -> bool:
    """Return whether a process of this machine has neither ended nor left its number to another one."""
    try:
        fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False
    return fields[0] not in "ZX" and started < one.since + 2


def _spell(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds // 5 * 5:.0f} s"  # rounded, because each change of the sentence is pushed to pages
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
