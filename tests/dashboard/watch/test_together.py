"""Work for several servers is done in one call, and what is wrong with one of them concerns only that one."""

import asyncio
from collections.abc import Callable

import pytest
from django.db import OperationalError

from dashboard.watch.together import Together


def halves(numbers: list[int]) -> list[int]:
    calls.append(len(numbers))
    return [number // 2 if number >= 0 else number // (number - number) for number in numbers]


def away(_: list[int]) -> list[int]:
    raise OperationalError("the database is away")


calls: list[int] = []


def asked(work: Callable[[list[int]], list[int]], *numbers: int) -> list[object]:
    """Return what each of several servers that ask at once is answered: a result, or an error."""

    async def scenario() -> list[object]:
        together = Together()
        return list(await asyncio.gather(*(together.ask(work, one) for one in numbers), return_exceptions=True))

    calls.clear()
    return asyncio.run(scenario())


def test_what_is_asked_meanwhile_is_done_in_one_call() -> None:
    assert asked(halves, *range(120)) == [number // 2 for number in range(120)]
    assert calls == [50, 50, 20], "so that no transaction takes long"


@pytest.mark.django_db
def test_an_error_of_one_reaches_no_other_one() -> None:
    first, wrong, last = asked(halves, 2, -1, 6)
    assert (first, last) == (1, 3)
    assert isinstance(wrong, ZeroDivisionError)
    assert all(isinstance(one, OperationalError) for one in asked(away, 1, 2))
