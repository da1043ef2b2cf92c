"""Timers of less than a millisecond."""

import asyncio
import resource
import time
from collections.abc import Callable

import pytest
import uvloop

from serving.resources.precise_timers import precise_timers

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
def test_it_is_never_early_and_the_loop_sleeps_until_it_is_due(new_loop: NewLoop) -> None:
    async def wait() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        due = loop.create_future()
        asked = time.monotonic_ns()
        precise_timers(loop).call_in(300_000, lambda: due.set_result(time.monotonic_ns()))
        return asked, await due

    with asyncio.Runner(loop_factory=new_loop) as runner:
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(100):
            asked, came = runner.run(wait())
            assert came - asked >= 300_000
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - slept
    assert (
        slept >= 50
    )  # a loop that looks all the time whether the delay is over never waits; a busy machine may make it late


@LOOPS
def test_timers_come_in_the_order_in_which_they_are_due_and_cancelled_ones_do_not(new_loop: NewLoop) -> None:
    came: list[str] = []
    order: list[str] = []  # as they were due: this test may be held up between two calls

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        timers = precise_timers(loop)
        last = loop.create_future()
        first = timers.call_in(300_000, lambda: came.append("first"))
        timers.call_in(400_000, lambda: came.append("never")).cancel()
        timers.call_in(900_000, lambda: last.set_result(None))
        before = timers.call_in(50_000, lambda: came.append("before"))
        order.extend(timer[1] for timer in sorted([(first.due_ns, "first"), (before.due_ns, "before")]))
        await last

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(wait())
    assert came == order


@LOOPS
def test_one_that_raises_does_not_keep_the_next_from_coming(new_loop: NewLoop) -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        last = loop.create_future()

        def fail() -> None:
            raise ValueError("of this test")

        precise_timers(loop).call_in(100_000, fail)
        precise_timers(loop).call_in(100_000, lambda: last.set_result(None))
        await last

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(wait())
