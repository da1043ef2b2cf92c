"""Clocks go on whatever one of their turns does."""

import asyncio
import threading

import pytest

from dashboard.accounts.tokens import auth_file_write
from dashboard.watch.periodic import PeriodicTask, periodic_tasks, run_periodically
from tests.support.serving_process import PATIENCE_S


def test_a_turn_that_fails_does_not_stop_the_clock(caplog: pytest.LogCaptureFixture):
    turns: list[str] = []

    def work() -> int:
        turns.append(threading.current_thread().name)
        if len(turns) == 1:
            raise ValueError("not today")
        return len(turns)

    async def scenario() -> None:
        clock = asyncio.create_task(run_periodically(PeriodicTask("count turns", 0.01, work)))
        async with asyncio.timeout(PATIENCE_S):
            while len(turns) < 3:
                await asyncio.sleep(0.01)
        clock.cancel()
        await asyncio.gather(clock, return_exceptions=True)

    asyncio.run(scenario())
    assert "could not count turns" in caplog.text
    assert threading.main_thread().name not in turns, "slow work holds up nobody"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("task", periodic_tasks(), ids=lambda task: task.name)
def test_every_task_has_nothing_to_do_on_an_empty_data_folder(task: PeriodicTask):
    auth_file_write()  # as `up` does before it starts `watch`
    assert not task.work()
