"""The memory of a day's counters: a mapped file, whose content outlives a killed process. After a power cut it may be old.

The file consists of slots. A slot has 72 bytes of counters, the length of its key in 8 bytes, and the key: the SHA-256 of a
token and the name of a model, as JSON. The length is written last, so that a slot is there whole or not at all.
"""

import json
import logging
import mmap
import os
from pathlib import Path

from repository.core.usage_log import COUNTERS, Key

log = logging.getLogger(__name__)

_COUNTED = len(COUNTERS) * 8
_DAMAGED: Key = ("", "")
SLOT = 1024
KEY_FROM = _COUNTED + 8
CHUNK_SLOTS = 64  # slots by which a file grows


def private_cells() -> "memoryview[int]":
    """Return counters that are lost when the process ends."""
    return memoryview(bytearray(_COUNTED)).cast("q")


class CounterPage:
    """The counters of one day, in a file. A page without a file, or on a full disk, keeps them in the memory of the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._chunks: list[mmap.mmap] = []
        self._used = 0  # slots
        self._failed = path is None

    def restored(self) -> dict[Key, "memoryview[int]"]:
        """Return the counters that an earlier process has left in the file."""
        path = self._path
        if path is None or not path.exists():
            return {}
        found: dict[Key, memoryview[int]] = {}
        try:
            size = path.stat().st_size
            for _ in range(-(-size // (SLOT * CHUNK_SLOTS))):  # also the last chunk of a file that was cut off
                self._map()
        except OSError as error:
            self._give_up(error)
            return {}
        for number in range(len(self._chunks) * CHUNK_SLOTS):
            cells, key = self._slot(number)
            if key is not None:
                self._used = number + 1
                if key != _DAMAGED:
                    found[key] = cells
        return found

    def cells(self, key: Key) -> "memoryview[int]":
        """Return new counters of a key, which are 0."""
        text = json.dumps(key).encode()
        if self._failed or len(text) > SLOT - KEY_FROM:
            return private_cells()
        try:
            if self._used == len(self._chunks) * CHUNK_SLOTS:
                self._map()
        except OSError as error:
            self._give_up(error)
            return private_cells()
        view, number = memoryview(self._chunks[self._used // CHUNK_SLOTS]), self._used
        start = number % CHUNK_SLOTS * SLOT
        view[start : start + _COUNTED] = bytes(_COUNTED)  # a damaged file may have left counts
        view[start + KEY_FROM : start + KEY_FROM + len(text)] = text
        view[start + _COUNTED : start + KEY_FROM] = len(text).to_bytes(8, "little")
        self._used = number + 1
        return view[start : start + _COUNTED].cast("q")

    def _map(self) -> None:
        """Map the next chunk of the file. Its space is reserved, because a write to a hole on a full disk ends the process."""
        assert self._path is not None
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = SLOT * CHUNK_SLOTS
            offset = len(self._chunks) * size
            os.posix_fallocate(descriptor, offset, size)
            self._chunks.append(mmap.mmap(descriptor, size, offset=offset))
        finally:
            os.close(descriptor)

    def _slot(self, number: int) -> "tuple[memoryview[int], Key | None]":
        """Return the counters and the key of a slot: None for an unused slot."""
        view = memoryview(self._chunks[number // CHUNK_SLOTS])
        start = number % CHUNK_SLOTS * SLOT
        cells = view[start : start + _COUNTED].cast("q")
        length = int.from_bytes(view[start + _COUNTED : start + KEY_FROM], "little")
        if not length:
            return cells, None
        try:
            digest, model = json.loads(bytes(view[start + KEY_FROM : start + KEY_FROM + min(length, SLOT - KEY_FROM)]))
        except (ValueError, TypeError, RecursionError):
            return cells, _DAMAGED
        return cells, (str(digest), str(model))

    def _give_up(self, error: OSError) -> None:
        self._failed = True
        log.error(
            "the counters of usage cannot be kept in a file: %s; a killed server would lose those of its last second",
            error.strerror,
        )
