"""Which streams of a connection wait while too many requests are under way, and in which order they read on."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from serving.frontends.http2.peer_limits import ConcurrencyLimit
from tests.support.exploring import run_machine
from tests.support.waiting_machine import WaitingMachine


class _LoopDouble(asyncio.AbstractEventLoop):
    """A loop that turns when the machine says so."""

    def __init__(self, callbacks: deque[Callable[[], Any]]) -> None:
        self._callbacks = callbacks

    def call_soon(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:
        self._callbacks.append(partial(callback, *arguments))


class _Stream:
    def __init__(self, released: Callable[[], None]) -> None:
        self.released = released


class _OnAConnection(WaitingMachine):
    """Streams with one request each. One that is reset says nothing to the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = ConcurrencyLimit(max_streams=100, max_requests=self.room)
        self.streams = [_Stream(resume) for resume in self.resumes]
        asyncio._set_running_loop(_LoopDouble(self.callbacks))

    def take(self, waiter: int) -> bool:
        if self.limit.must_wait(self.streams[waiter]):
            return False
        self.limit.pending_requests += 1
        return True

    def give_back(self) -> None:
        self.limit.requests_ended()

    def withdraw(self, waiter: int) -> bool:
        return False

    def teardown(self) -> None:
        super().teardown()
        asyncio._set_running_loop(None)


@pytest.mark.hypothesis
def test_none_waits_for_room_that_nobody_holds() -> None:
    run_machine(_OnAConnection, examples=200, steps=40)
