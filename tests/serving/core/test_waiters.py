"""The line of waiters itself, with and without the event loop between them."""

import pytest
from hypothesis.stateful import rule

from serving.core.waiters import Waiters
from tests.support.exploring import run_machine
from tests.support.waiting_machine import ROOM, WaitingMachine


class _Resumed(WaitingMachine):
    """Room for equal waiters, who are resumed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0
        self.waiters: Waiters[int] = self.line_of_waiters()

    def line_of_waiters(self) -> Waiters[int]:
        return Waiters(self.has_room)

    def has_room(self, waiter: int) -> bool:
        return self.taken < self.room

    def take(self, waiter: int) -> bool:
        if not self.has_room(waiter):
            self.waiters.wait(waiter, self.resumes[waiter])
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        self.taken -= 1
        self.waiters.ask()

    def withdraw(self, waiter: int) -> bool:
        self.waiters.withdraw(waiter)
        return True

    @rule(room=ROOM)
    def resize(self, room: int) -> None:
        self.room = room
        self.waiters.ask()


class _ResumedByTheLoop(_Resumed):
    """The same, one in each turn of the loop: new ones go behind those that wait."""

    def line_of_waiters(self) -> Waiters[int]:
        return Waiters(self.has_room, self.callbacks.append)

    asked: int | None = None

    def resumed(self, waiter: int, *arguments: object) -> None:
        self.asked = waiter
        super().resumed(waiter, *arguments)
        self.asked = None

    def take(self, waiter: int) -> bool:
        if len(self.waiters) and self.asked != waiter:
            self.waiters.wait(waiter, self.resumes[waiter])
            return False
        return super().take(waiter)


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [_Resumed, _ResumedByTheLoop])
def test_no_waiter_waits_for_room_that_no_other_holds(machine: type[WaitingMachine]) -> None:
    run_machine(machine, examples=200, steps=40)


def test_a_waiter_that_raises_keeps_no_other_waiting() -> None:
    resumed: list[str] = []
    waiters: Waiters[str] = Waiters(lambda waiter: True)
    waiters.wait("raises", lambda: [][0])
    waiters.wait("waits", lambda: resumed.append("waits"))
    waiters.ask()
    assert resumed == ["waits"]
    assert not len(waiters)


def test_an_owner_that_raises_is_asked_again() -> None:
    resumed: list[str] = []
    room: list[bool] = []
    waiters: Waiters[str] = Waiters(lambda waiter: room[0])
    waiters.wait("waits", lambda: resumed.append("waits"))
    with pytest.raises(IndexError):
        waiters.ask()
    room.append(True)
    waiters.ask()
    assert resumed == ["waits"]


def test_the_least_turn_goes_first_and_of_equal_ones_the_one_that_waits_longest() -> None:
    resumed: list[str] = []
    turns = {"late": 2, "first": 1, "second": 1}
    waiters: Waiters[str] = Waiters(lambda waiter: True, turn=turns.__getitem__)
    for waiter in turns:
        waiters.wait(waiter, lambda waiter=waiter: resumed.append(waiter))
    assert list(waiters) == ["first", "second", "late"]
    waiters.ask()
    assert resumed == ["first", "second", "late"]
