"""Runs blocking network calls off the event loop, on threads that never delay the end of the process.

Before Python exits, it waits for the threads of an executor. A store that accepts a connection and never answers would
therefore keep a server alive until the last timeout.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class NetworkThreads:
    """Runs at most `limit` calls at a time, each on a separate thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._room = asyncio.Semaphore(limit)

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return the call's result, or raise its exception. If the caller is cancelled, the call continues."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def call() -> None:
            try:
                result = function(*arguments, **named)
            except BaseException as error:
                self._resolve(answer, partial(answer.set_exception, error))
            else:
                self._resolve(answer, partial(answer.set_result, result))

        async with self._room:
            threading.Thread(target=call, name="network", daemon=True).start()
            return await answer

    def _resolve(self, answer: asyncio.Future[T], set_outcome: Callable[[], None]) -> None:
        def unless_done() -> None:
            if not answer.done():
                set_outcome()

        try:
            self._loop.call_soon_threadsafe(unless_done)
        except RuntimeError:  # the loop has been closed meanwhile
            pass
