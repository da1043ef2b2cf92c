"""What was last known of a rollout's stable arm, in a file: a server that restarts where stable gets no requests any more, or
hardly any, still knows what to hold the candidate against.

The file lies beside that of the breaches. It is written on a thread, once a minute while rollouts are under way, and at once
when a weight changes: what a kill loses is a minute of figures at the same weight.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from repository.core.errors import RepositoryError
from repository.core.histogram import Counts
from repository.files import storage
from serving.traffic.figures import Compared, Window

log = logging.getLogger(__name__)

WRITTEN_S = 60
MOST_MODELS = 1000
MAX_BYTES = 64 << 20


class Known(NamedTuple):
    """What was counted in a window of so many seconds, while that was enough. at: until when, in words."""

    window: Window | Compared
    window_s: float
    at: str


class Memory(NamedTuple):
    """Of one rollout. arms: what they are, in words: another version is not held against what this one did."""

    rollout: str
    arms: tuple[str, str]
    stable: Known | None
    mirrored: Known | None


class StableMemory:
    """That of one server, by the key of the model. Used on the event loop's thread; without a path it keeps nothing."""

    def __init__(self, breaches: Path | None) -> None:
        self._path = None if breaches is None else breaches.with_name(f"{breaches.stem}.stable.json")
        self._known: dict[str, Memory] = {} if self._path is None else _read(self._path)
        self._unwritten = False
        self._second = 0
        self._writing: asyncio.Future[None] | None = None
        self._failed = False

    def of(self, model: str, rollout: str, arms: tuple[str, str]) -> Memory | None:
        """Return what is known of these arms of a rollout."""
        found = self._known.get(model)
        return found if found is not None and (found.rollout, found.arms) == (rollout, arms) else None

    def note(self, model: str, memory: Memory, *, at_once: bool = False) -> None:
        """Keep what is known now. at_once: it is written with the next tick, for no more of it may come."""
        first = model not in self._known or self._known[model][:2] != memory[:2]
        if not first and self._known[model] == memory:
            self._second = 0 if at_once else self._second
            return
        self._known.pop(model, None)
        self._known[model] = memory
        while len(self._known) > MOST_MODELS:
            del self._known[next(iter(self._known))]
        self._unwritten = True
        if first or at_once:
            self._second = 0

    def forget(self, model: str) -> None:
        """Its rollout is over."""
        if self._known.pop(model, None) is not None:
            self._unwritten = True

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """A second has passed: write what is new, where it is time."""
        if self._path is None:
            return
        due = self._second <= 0
        self._second -= 1
        if due and self._unwritten and (self._writing is None or self._writing.done()):
            self._second, self._unwritten = WRITTEN_S, False
            self._writing = loop.run_in_executor(None, self._write, self._path, _told(self._known))

    async def close(self) -> None:
        """Write what is new, and wait until it is on the disk."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        if self._path is not None and self._unwritten:
            await asyncio.to_thread(self._write, self._path, _told(self._known))

    def _write(self, path: Path, content: object) -> None:
        try:
            storage.write_atomic(path, json.dumps(content).encode())
        except (OSError, RepositoryError) as error:
            if not self._failed:
                log.error("what is known of stable versions cannot be written to %s: %s", path, error)
            self._failed = self._unwritten = True  # it is tried again, for nothing newer may come
        else:
            self._failed = False


# -- the file ------------------------------------------------------------------------------------------------------------
def _told(known: dict[str, Memory]) -> object:
    return {
        model: {
            "rollout": one.rollout,
            "arms": list(one.arms),
            "stable": _row(one.stable),
            "mirrored": _row(one.mirrored),
        }
        for model, one in known.items()
    }


def _row(known: Known | None) -> object:
    return known and {"seconds": known.window_s, "at": known.at, **known.window._asdict()}


def _read(path: Path) -> dict[str, Memory]:
    """Return what an earlier process left; {} where there is nothing, or nothing that can be read, which is logged."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        content = json.loads(path.read_bytes())
        return {str(model): _memory(row) for model, row in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.error("what is known of stable versions could not be read from %s (%s)", path, type(error).__name__)
        return {}


def _memory(row: dict[str, object]) -> Memory:
    stable, candidate = cast(list[object], row["arms"])
    return Memory(
        rollout=str(row["rollout"]),
        arms=(str(stable), str(candidate)),
        stable=_known(row["stable"], _window),
        mirrored=_known(row["mirrored"], lambda found: Compared(_count(found["compared"]), _count(found["disagreed"]))),
    )


def _known(row: object, read: Callable[[dict[str, object]], Window | Compared]) -> Known | None:
    if row is None:
        return None
    found = cast(dict[str, object], row)
    return Known(read(found), float(_count(found["seconds"])), str(found["at"])[:40])


def _window(row: dict[str, object]) -> Window:
    return Window(
        requests=_count(row["requests"]),
        errors=_count(row["errors"]),
        latency=_counts(row["latency"]),
        sum_ns=_count(row["sum_ns"]),
        given_up=_counts(row["given_up"]),
        refused=_count(row["refused"]),
        begun=_count(row["begun"]),
        moments=_count(row["moments"]),
    )


def _counts(value: object) -> Counts:
    return {int(bucket): _count(count) for bucket, count in cast(dict[str, object], value).items()}


def _count(value: object) -> int:
    if type(value) not in (int, float) or not 0 <= cast(float, value) < 1e18:
        raise ValueError("no count")
    return int(cast(float, value))
