"""Clocks go on whatever one of their turns does."""

import asyncio
import threading

import pytest

from dashboard.accounts.tokens import auth_file_write
from dashboard.watch.clocks import Clock, clocks, run_clock
from tests.support.serving_process import PATIENCE_S


def test_a_turn_that_fails_does_not_stop_the_clock(caplog: pytest.LogCaptureFixture):
    turns: list[str] = []

    def work() -> int:
        turns.append(threading.current_thread().name)
        if len(turns) == 1:
            raise ValueError("not today")
        return len(turns)

    async def scenario() -> None:
        clock = asyncio.create_task(run_clock(Clock("count turns", 0.01, work)))
        async with asyncio.timeout(PATIENCE_S):
            while len(turns) < 3:
                await asyncio.sleep(0.01)
        clock.cancel()
        await asyncio.gather(clock, return_exceptions=True)

    asyncio.run(scenario())
    assert "could not count turns" in caplog.text
    assert threading.main_thread().name not in turns, "slow work holds up nobody"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("clock", clocks(), ids=lambda clock: clock.name)
def test_every_clock_has_nothing_to_do_on_an_empty_data_folder(clock: Clock):
    auth_file_write()  # as `up` does before it starts `watch`
    assert not clock.work()
