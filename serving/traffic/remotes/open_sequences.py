"""The sequences that requests from this server have opened on another server.

A sequence is open from its START until its END is answered, or until it is idle for longer than the model's configuration
allows. The requests of a sequence are sent one after the other.
"""

import asyncio
import time
from functools import partial

from serving.core.request import SequencePosition

Identifier = int | str


class _Sequence:
    """begun_ns: when the START of the sequence came, in monotonic ns; 0 if this server did not see it. last: the running task
    of the last request. timer: ends the sequence; set while the sequence is idle."""

    __slots__ = ("begun_ns", "last", "timer")

    def __init__(self) -> None:
        self.begun_ns = 0
        self.last: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class OpenSequences:
    """Used on the event loop's thread."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._known: dict[Identifier, _Sequence] = {}
        self._all_ended: asyncio.Future[None] | None = None

    def start_ns(self, identifier: Identifier) -> int:
        """Return when an open sequence began, in monotonic ns; 0 if no such sequence is open."""
        sequence = self._known.get(identifier)
        return sequence.begun_ns if sequence is not None else 0

    def before(self, identifier: Identifier) -> asyncio.Task[None] | None:
        """Return the running task of the last request of a sequence, or None if none is running."""
        sequence = self._known.get(identifier)
        return sequence.last if sequence is not None else None

    def follow(self, position: SequencePosition, task: asyncio.Task[None]) -> None:
        """Record the task of the next request of a sequence."""
        sequence = self._known.setdefault(position.id, _Sequence())
        if position.start:
            sequence.begun_ns = time.monotonic_ns()
        if sequence.timer is not None:
            sequence.timer.cancel()
        sequence.last, sequence.timer = task, None
        task.add_done_callback(partial(self._end_request, position))

    def _end_request(self, position: SequencePosition, task: asyncio.Task[None]) -> None:
        sequence = self._known.get(position.id)
        if sequence is None or sequence.last is not task:
            return
        sequence.last = None
        if position.end or not sequence.begun_ns:
            self._forget(position.id)
        else:
            sequence.timer = task.get_loop().call_later(self._idle_s, self._forget, position.id)

    def _forget(self, identifier: Identifier) -> None:
        del self._known[identifier]
        if not self._known:
            self._tell_ended()

    def _tell_ended(self) -> None:
        if self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

    # -- at the end ------------------------------------------------------------------------------------------------
    async def wait_until_ended(self) -> None:
        """Wait until no sequence is open. Sequences that are abandoned are not open."""
        if self._known:
            self._all_ended = asyncio.get_running_loop().create_future()
            await self._all_ended

    def abandon(self) -> None:
        """Forget all sequences. Called when no more of their requests will come."""
        for sequence in self._known.values():
            if sequence.timer is not None:
                sequence.timer.cancel()
        self._known.clear()
        self._tell_ended()
