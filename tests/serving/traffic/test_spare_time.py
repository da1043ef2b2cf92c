"""Spare time of the loop: the work that is allowed while its thread is busy, by a clock of the test's own."""

import time

import pytest

from serving.traffic import spare_time
from serving.traffic.spare_time import ALWAYS, READING_NS, SpareTime


class Clock:
    """Time, and how much of it the thread has worked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.worked = 0
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(spare_time, "_busy_ns", lambda: self.worked)

    def passes(self, busy: float) -> None:
        """Time passes from one reading to the next, of which the thread works this part."""
        self.now += READING_NS
        self.worked += int(busy * READING_NS)


def let_through(spare: SpareTime, asked: int = 2000) -> int:
    return sum(spare.left() for _ in range(asked))


def test_less_and_less_is_let_through_while_the_loop_is_busy_and_all_again_once_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    spare = SpareTime()
    clock.passes(1.0)
    assert let_through(spare) == 2000  # one busy moment is none
    found = []
    for _ in range(10):
        clock.passes(0.9)
        found.append(let_through(spare))
    assert 800 < found[0] < 1200
    assert found[-1] < 100
    assert found[-1] >= ALWAYS
    for _ in range(25):
        clock.passes(0.5)
        spare.left()
    assert let_through(spare) == 2000


def test_a_thread_knows_how_long_it_has_worked() -> None:
    before = spare_time._busy_ns()
    sum(range(2_000_000))
    assert spare_time._busy_ns() > before
