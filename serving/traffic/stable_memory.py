"""Keeps the last figures of rollouts' stable arms in a file. A restarted server compares a candidate with them if stable gets
hardly any requests.
The file is next to the file of breaches. Servers that share that file share this file, too, and each adds its own figures. A
thread writes the file once a minute while rollouts are under way, and soon after a weight changes. So a killed server loses at
most a minute of figures, all at the same weight.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from repository.core.errors import RepositoryError
from repository.core.histogram import BUCKETS, Counts
from repository.files import storage
from serving.traffic.figures import Compared, Window

log = logging.getLogger(__name__)

WRITTEN_S = 60
MOST_MODELS = 1000
MAX_BYTES = 64 << 20
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class Known(NamedTuple):
    """The last window that had enough requests. at: when it was read, as text, such as "12:30:05 UTC"."""

    window: Window | Compared
    window_s: float
    at: str


class Memory(NamedTuple):
    """The figures of one rollout. arms: the names of its arms. If an arm now has another name, the figures are not used."""

    rollout: str
    arms: tuple[str, str]
    stable: Known | None
    mirrored: Known | None


class StableMemory:
    """The figures of one server, by the key of the model. Without a path they are not saved. Used on the loop's thread."""

    def __init__(self, breaches: Path | None) -> None:
        self._path = None if breaches is None else breaches.with_name(f"{breaches.stem}.stable.json")
        self._known: dict[str, Memory] = {} if self._path is None else _read(self._path)
        self._unwritten: dict[str, tuple[Memory, bool]] = {}  # by model; the flag is False if the rollout is over
        self._second = 0
        self._writing: asyncio.Future[None] | None = None
        self._failed = False

    def of(self, model: str, rollout: str, arms: tuple[str, str]) -> Memory | None:
        """Return the figures of a rollout with these arms, or None if there are none."""
        found = self._known.get(model)
        return found if found is not None and (found.rollout, found.arms) == (rollout, arms) else None

    def note(self, model: str, memory: Memory, *, at_once: bool = False) -> None:
        """Keep the present figures. at_once: whether to write them with the next tick."""
        first = model not in self._known or self._known[model][:2] != memory[:2]
        if not first and self._known[model] == memory:
            self._second = 0 if at_once else self._second
            return
        _keep(self._known, model, memory)
        self._unwritten[model] = memory, True
        if first or at_once:
            self._second = 0

    def forget(self, model: str) -> None:
        """Forget a rollout that is over."""
        before = self._known.pop(model, None)
        if before is not None:
            self._unwritten[model] = before, False

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write changes if a minute has passed. Called once a second."""
        if self._path is None:
            return
        due = self._second <= 0
        self._second -= 1
        if due and self._unwritten and (self._writing is None or self._writing.done()):
            self._second = WRITTEN_S
            self._writing = loop.create_task(self._write(self._path))

    async def close(self) -> None:
        """Write changes, and wait until they are on the disk."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        if self._path is not None and self._unwritten:
            await self._write(self._path)

    async def _write(self, path: Path) -> None:
        changes, self._unwritten = self._unwritten, {}
        try:
            await asyncio.to_thread(_write, path, changes)
        except (OSError, RepositoryError) as error:
            if not self._failed:
                log.error("figures of stable versions cannot be written to %s: %s", path, error)
            self._failed = True
            self._unwritten = {**changes, **self._unwritten}  # the next write retries these changes
        else:
            self._failed = False


def _keep(known: dict[str, Memory], model: str, memory: Memory) -> None:
    known.pop(model, None)
    known[model] = memory
    while len(known) > MOST_MODELS:
        del known[next(iter(known))]


# -- the file ------------------------------------------------------------------------------------------------------------
def _write(path: Path, changes: dict[str, tuple[Memory, bool]]) -> None:
    with storage.locked(path.with_name(f".{path.name}.lock"), path.name):
        known = _read(path)
        for model, (memory, goes_on) in changes.items():
            if goes_on:
                _keep(known, model, memory)
            elif model in known and known[model].rollout == memory.rollout:
                del known[model]
        storage.write_atomic(path, json.dumps(_json(known)).encode())


def _json(known: dict[str, Memory]) -> object:
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
    """Return the figures of an earlier process. Figures that cannot be read are left out, and logged."""
    known: dict[str, Memory] = {}
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        rows = list(json.loads(path.read_bytes()).items())
    except FileNotFoundError:
        return {}
    except (OSError, *_DAMAGED) as error:
        log.error("figures of stable versions could not be read from %s (%s)", path, type(error).__name__)
        return {}
    for model, row in rows:
        try:
            known[model] = _memory(row)
        except _DAMAGED as error:
            log.error(
                "the figures in %s of the stable version of '%s' are passed over (%s)",
                path,
                model,
                type(error).__name__,
            )
    return known


def _memory(row: dict[str, object]) -> Memory:
    stable, candidate = cast(list[object], row["arms"])
    return Memory(
        rollout=str(row["rollout"]),
        arms=(str(stable), str(candidate)),
        stable=_read_known(row["stable"], _window),
        mirrored=_read_known(
            row["mirrored"], lambda found: Compared(_count(found["compared"]), _count(found["disagreed"]))
        ),
    )


def _read_known(row: object, read: Callable[[dict[str, object]], Window | Compared]) -> Known | None:
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
    counts = {int(bucket): _count(count) for bucket, count in cast(dict[str, object], value).items()}
    if not all(0 <= bucket < BUCKETS for bucket in counts):
        raise ValueError("no bucket of ours")
    return counts


def _count(value: object) -> int:
    if type(value) not in (int, float) or not 0 <= cast(float, value) < 1e18:
        raise ValueError("no count")
    return int(cast(float, value))
