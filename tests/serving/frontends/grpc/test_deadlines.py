"""Calls end when their time is over and not before, however many there are, and with few timers."""

import asyncio
from collections.abc import Callable

import pytest

from serving.frontends.grpc.deadlines import Deadlines


class Waiting:
    """A call that notes when it expired."""

    def __init__(self, expired: Callable[[], None]) -> None:
        self.expired = expired


async def ended_after(timeout_s: float) -> float:
    """Return after how many seconds a call with this timeout expired."""
    loop = asyncio.get_running_loop()
    reported: asyncio.Future[float] = loop.create_future()
    began = loop.time()
    Deadlines().add(Waiting(lambda: reported.set_result(loop.time())), timeout_s)
    return await reported - began


@pytest.mark.parametrize("timeout_s", [0.0, 1e-9, 0.003, 0.02, 0.13])
def test_a_call_expires_at_its_deadline_and_not_before(timeout_s: float) -> None:
    assert asyncio.run(ended_after(timeout_s)) >= timeout_s


@pytest.mark.parametrize("timeout_s", [0.5, 1.0, 5.0, 59.9, 3600.0, 99_999_999 * 3600.0])
def test_a_group_ends_little_later_than_each_of_its_calls(timeout_s: float) -> None:
    async def main() -> None:
        began = asyncio.get_running_loop().time()
        group_s = Deadlines().add(Waiting(lambda: None), timeout_s).ends_at - began
        passed_s = asyncio.get_running_loop().time() - began
        assert timeout_s <= group_s <= timeout_s * (1 + 1 / 32) + 0.01 + passed_s

    asyncio.run(main())


def test_calls_with_equal_timeouts_share_a_timer() -> None:
    async def main() -> int:
        deadlines = Deadlines()
        groups = {id(deadlines.add(Waiting(lambda: None), 600.0)) for _ in range(1000)}
        return len(groups)

    assert asyncio.run(main()) <= 2


def test_a_call_that_has_left_its_group_does_not_expire() -> None:
    async def main() -> list[str]:
        reported: list[str] = []
        deadlines = Deadlines()
        stays, leaves = Waiting(lambda: reported.append("stays")), Waiting(lambda: reported.append("leaves"))
        deadlines.add(leaves, 0.01).pop(leaves)
        deadlines.add(stays, 0.01)
        while not reported:
            await asyncio.sleep(0.005)
        return reported

    assert asyncio.run(main()) == ["stays"]
