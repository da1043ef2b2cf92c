"""Compares an owner of room that has waiters with a model: random requests, releases, cancellations and deadlines. No waiter
waits for free room, the order of waiters is kept, and no room is lost."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

WAITERS = st.integers(0, 5)
ROOM = st.integers(1, 3)  # the sizes for an owner whose room may grow or shrink


class WaitingMachine(RuleBasedStateMachine):
    """The rule machine. A subclass calls the owner of room. Each waiter takes one place of `room`.

    wanting: the waiters that still want room. line: the waiters in the owner's queue, in order; some may have given up without
    notice. holding: the waiters that have room.
    """

    def __init__(self) -> None:
        super().__init__()
        self.callbacks: deque[Callable[[], Any]] = deque()  # callbacks of the event loop, which Hypothesis runs
        self.failures: list[AssertionError] = []
        self.room = 2
        self.now = 0
        self.deadlines: dict[int, int] = {}
        self.wanting: set[int] = set()
        self.line: list[int] = []
        self.holding: set[int] = set()
        self.resumes = [partial(self.resumed, waiter) for waiter in range(6)]

    # -- the owner -------------------------------------------------------------------------------------------------
    def take(self, waiter: int) -> bool:
        """Request room. Return whether there was some."""
        raise NotImplementedError

    def give_back(self) -> None:
        raise NotImplementedError

    def withdraw(self, waiter: int) -> bool:
        """Cancel the request of a waiter. Return whether the owner has removed it from its queue."""
        raise NotImplementedError

    # -- actions of waiters ----------------------------------------------------------------------------------------
    @rule(waiter=WAITERS, patience=st.integers(1, 5))
    def ask(self, waiter: int, patience: int) -> None:
        if waiter not in self.wanting | self.holding:
            self.wanting.add(waiter)
            self.deadlines[waiter] = self.now + patience
            self._ask(waiter, [one for one in self.line if one in self.wanting])

    def resumed(self, waiter: int, *_: object) -> None:
        """Request room again, if the waiter still wants it. The owner calls this function."""
        ahead = self.line[: self.line.index(waiter)]
        self.line.remove(waiter)
        try:
            if waiter in self.wanting:
                self._ask(waiter, [one for one in ahead if one in self.wanting])
        except AssertionError as error:  # an owner would only log the error of a waiter
            self.failures.append(error)

    def _ask(self, waiter: int, ahead: list[int]) -> None:
        if self.take(waiter):
            assert not ahead, f"{waiter} has overtaken {ahead}"
            assert len(self.holding) < self.room, "room was given twice"
            self.wanting.remove(waiter)
            self.holding.add(waiter)
        elif waiter not in self.line:
            self.line.append(waiter)

    @rule(waiter=WAITERS)
    def end(self, waiter: int) -> None:
        if waiter in self.holding:
            self.holding.remove(waiter)
            self.give_back()

    @rule(waiter=WAITERS)
    def go_away_without_a_word(self, waiter: int) -> None:
        self.wanting.discard(waiter)

    @rule(waiter=WAITERS)
    def cancel(self, waiter: int) -> None:
        self.wanting.discard(waiter)
        if waiter in self.line and self.withdraw(waiter):
            self.line.remove(waiter)

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        for waiter in [one for one in self.wanting if self.deadlines[one] <= self.now]:
            self.cancel(waiter)

    @rule()
    def turn(self) -> None:
        if self.callbacks:
            self.callbacks.popleft()()

    # -- invariants ------------------------------------------------------------------------------------------------
    @invariant()
    def none_waits_for_room_that_nobody_holds(self) -> None:
        assert not self.failures
        if not self.callbacks and self.wanting:
            assert len(self.holding) >= self.room, f"{self.wanting} wait for ever"

    def teardown(self) -> None:
        """Check that every waiter gets its room in the end, and that all room is given back."""
        while self.holding or self.callbacks:
            self.turn()
            for waiter in list(self.holding):
                self.end(waiter)
            self.none_waits_for_room_that_nobody_holds()
        assert not self.wanting
