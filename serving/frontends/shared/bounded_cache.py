"""A cache of limited size. A full cache evicts its oldest entry."""

import threading
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dictionary that any thread may read without a lock. Only `remember` adds entries."""

    __slots__ = ("_limit", "_lock")  # without slots, CPython's look-up of the method `get` takes three times as long

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._lock = threading.Lock()  # held while an entry is added, which takes two steps

    def remember(self, key: K, value: V) -> None:
        with self._lock:
            if len(self) >= self._limit and key not in self:
                del self[next(iter(self))]
            self[key] = value
