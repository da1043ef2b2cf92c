"""The event loop of a model's coroutines: one, in a thread of its own, so that what they open in one call serves the next."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any


class ModelLoop:
    """Begins when it is first used. Coroutines of several batches, and of is_ready, run on it side by side."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Any thread. The coroutine sees the context variables of the caller."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="execute", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
