"""`max_inflight_requests` of an ensemble: who waits for room at a step, who no longer does, and whom a new limit lets go on."""

from serving.scheduling.ensemble_graph import StepLimits


def test_who_waited_longest_goes_on_and_who_withdrew_is_forgotten() -> None:
    limits = StepLimits()
    limits.configure(1)
    resumed: list[str] = []
    waiting = [lambda index, name=name: resumed.append(f"{name} at {index}") for name in ("gone", "first", "second")]
    assert limits.enter(0, waiting[0])
    assert limits.enter(1, waiting[0]), "each step has room of its own"
    assert not any(limits.enter(0, resume) for resume in waiting)
    limits.withdraw(0, waiting[0])
    limits.leave(0)
    assert resumed == ["first at 0"]
    limits.leave(0)
    assert resumed == ["first at 0", "second at 0"]


def test_a_higher_limit_lets_those_that_wait_go_on_at_once() -> None:
    limits = StepLimits()
    limits.configure(1)
    resumed: list[int] = []
    waiting = [lambda index, number=number: resumed.append(number) for number in range(4)]
    assert [limits.enter(0, resume) for resume in waiting] == [True, False, False, False]
    limits.configure(3)
    assert resumed == [1, 2]
    limits.configure(0)
    assert resumed == [1, 2, 3]


def test_one_that_raises_when_it_may_go_on_keeps_nobody_waiting() -> None:
    limits = StepLimits()
    limits.configure(1)
    resumed: list[int] = []
    assert limits.enter(0, resumed.append)
    assert not limits.enter(0, lambda index: [][index])
    assert not limits.enter(0, resumed.append)
    limits.leave(0)
    limits.leave(0)
    assert resumed == [0]
