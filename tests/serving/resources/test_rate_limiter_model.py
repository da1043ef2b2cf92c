"""The rate limiter against a model of it: no instance waits for resources that none holds."""

from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.resources.rate_limiter import ANYWHERE, Demand, RateLimiter
from tests.support.exploring import run_machine

LIMITS = {"A": 2, "B": 3}
HOLDERS = st.integers(0, 5)
DEMANDS = st.builds(
    Demand,
    st.dictionaries(st.sampled_from(list(LIMITS)), st.integers(1, 2)).map(
        lambda counts: tuple(((name, ANYWHERE), count) for name, count in counts.items())
    ),
    st.integers(1, 4),
)


def fit(demands: list[Demand]) -> bool:
    needed: Counter[str] = Counter()
    for demand in demands:
        needed.update({name: count for (name, _), count in demand.resources})
    return all(count <= LIMITS[name] for name, count in needed.items())


class LimiterMachine(RuleBasedStateMachine):
    """Instances of a model each, with work to do, which may go away at any moment; the loop turns when hypothesis says so.

    work: how many executions each instance still wants. running: those that execute now. calls: an execution -> the instance
    that it has asked and waits for; the machine begins no calls that could not be answered whatever the limiter did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.callbacks: deque[Callable[[], None]] = deque()
        self.limiter = RateLimiter([(name, count, None) for name, count in LIMITS.items()], self.callbacks.append)
        self.demands: dict[int, Demand] = {}
        self.work: Counter[int] = Counter()
        self.running: dict[int, Demand] = {}
        self.calls: dict[int, int] = {}

    @initialize(demands=st.lists(DEMANDS, min_size=2, max_size=6))
    def load(self, demands: list[Demand]) -> None:
        for holder, demand in enumerate(demands):
            self.register(holder, demand)

    @rule(holder=HOLDERS, demand=DEMANDS)
    def register(self, holder: int, demand: Demand) -> None:
        if holder not in self.demands and holder not in self.running:
            self.demands[holder] = demand
            self.limiter.register(holder, demand, f"model {holder}")

    @rule(holder=HOLDERS)
    def unregister(self, holder: int) -> None:
        if holder in self.demands and holder not in self.calls:  # an instance that executes is not stopped
            del self.demands[holder]
            self.forget_work(holder)
            self.limiter.unregister(holder)

    @rule(holder=HOLDERS)
    def want(self, holder: int) -> None:
        if holder in self.demands:
            self.work[holder] += 1
            self.dispatch(holder)

    @rule(holder=HOLDERS)
    def withdraw(self, holder: int) -> None:
        """The clients go away, and nobody says so to the limiter."""
        self.forget_work(holder)

    def forget_work(self, holder: int) -> None:
        del self.work[holder]
        self.answer_calls(holder)

    def answer_calls(self, called: int) -> None:
        self.calls = {caller: one for caller, one in self.calls.items() if one != called}

    @rule(caller=HOLDERS, called=HOLDERS)
    def call(self, caller: int, called: int) -> None:
        """A model calls another one, and goes on when it has the answer."""
        calls = {**self.calls, caller: called}
        if caller in self.running and caller not in self.calls and called in self.demands and called not in calls:
            held = [self.running[one] for one in calls]
            if all(fit([*held, self.demands[one]]) for one in calls.values() if one in self.demands):
                self.calls = calls
                self.limiter.note_caller(f"model {caller}")
                self.want(called)

    @precondition(lambda self: self.running.keys() - self.calls.keys())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.end_one(data.draw(st.sampled_from(sorted(self.running.keys() - self.calls.keys()))))

    def end_one(self, holder: int) -> None:
        del self.running[holder]
        self.limiter.release(holder)
        self.answer_calls(holder)
        self.dispatch(holder)

    @precondition(lambda self: self.callbacks)
    @rule()
    def turn(self) -> None:
        self.callbacks.popleft()()

    def dispatch(self, holder: int) -> None:
        """Ask for the resources of an idle instance that has something to execute, as a scheduler does."""
        wants = holder in self.demands and self.work[holder] and holder not in self.running
        if wants and self.limiter.acquire(holder, lambda: self.dispatch(holder)):
            self.work[holder] -= 1
            self.running[holder] = self.demands[holder]

    def left(self) -> Counter[str]:
        left = Counter(LIMITS)
        for demand in self.running.values():
            left.subtract({name: count for (name, _), count in demand.resources})
        return left

    @invariant()
    def nothing_is_given_twice(self) -> None:
        assert all(count >= 0 for count in self.left().values())

    @invariant()
    def nobody_waits_for_what_nobody_holds(self) -> None:
        if self.callbacks:
            return  # the loop has not come to it yet
        left = self.left()
        for holder, work in self.work.items():
            if work and holder not in self.running:
                demand = self.demands[holder]
                lacks = any(count > left[name] for (name, _), count in demand.resources)
                assert lacks or self.running, f"{holder} waits for ever"

    def teardown(self) -> None:
        """What is wanted is executed to the last, however it began."""
        for _ in range(10 * (sum(self.work.values()) + len(self.running) + 10)):
            for _ in range(1000):  # one that is resumed and refused over and over would keep the loop busy
                if self.callbacks:
                    self.turn()
            assert not self.callbacks, "the loop is never idle"
            for holder in list(self.running.keys() - self.calls.keys())[:1]:
                self.end_one(holder)
        assert not self.running, "two models wait for each other"
        assert not +self.work, "some executions never came"


@pytest.mark.hypothesis
def test_no_instance_waits_for_resources_that_no_other_holds() -> None:
    run_machine(LimiterMachine, examples=200, steps=40)
