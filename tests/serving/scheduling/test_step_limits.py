"""`max_inflight_requests` of an ensemble: which requests wait for room at a step, and which of them a new limit lets go on."""

from collections.abc import Callable

import pytest
from hypothesis.stateful import rule

from serving.scheduling.ensemble_graph import StepLimits
from tests.support.exploring import run_machine
from tests.support.waiting_machine import ROOM, WaitingMachine

STEP = 3


class _AtAStep(WaitingMachine):
    """Requests at one step of an ensemble."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = StepLimits()
        self.limits.configure(self.room)

    def take(self, waiter: int) -> bool:
        return self.limits.enter(STEP, self.resumes[waiter])

    def give_back(self) -> None:
        self.limits.leave(STEP)

    def withdraw(self, waiter: int) -> bool:
        self.limits.withdraw(STEP, self.resumes[waiter])
        return True

    @rule(room=ROOM)
    def reload(self, room: int) -> None:
        self.room = room
        self.limits.configure(room)


@pytest.mark.hypothesis
def test_no_waiter_waits_for_room_that_no_other_holds() -> None:
    run_machine(_AtAStep, examples=200, steps=40)


def _entering(limits: StepLimits, name: str, resumed: list[str]) -> Callable[[int], None]:
    """Return what a request does that has waited for room at a step."""

    def resume(index: int) -> None:
        assert limits.enter(index, resume)
        resumed.append(f"{name} at {index}")

    return resume


def test_each_step_has_room_of_its_own_and_a_limit_of_none_lets_all_go_on() -> None:
    limits = StepLimits()
    limits.configure(1)
    resumed: list[str] = []
    entering = [_entering(limits, name, resumed) for name in ("first", "second", "third")]
    assert limits.enter(0, entering[0])
    assert limits.enter(1, entering[0])
    assert not any(limits.enter(0, resume) for resume in entering[1:])
    limits.leave(1)
    assert resumed == []
    limits.configure(0)
    assert resumed == ["second at 0", "third at 0"]


def test_a_waiter_that_raises_when_it_may_go_on_keeps_no_other_waiting() -> None:
    limits = StepLimits()
    limits.configure(1)
    resumed: list[str] = []
    assert limits.enter(0, _entering(limits, "first", resumed))
    assert not limits.enter(0, lambda index: [][index])
    assert not limits.enter(0, _entering(limits, "waits", resumed))
    limits.leave(0)
    assert resumed == ["waits at 0"]
