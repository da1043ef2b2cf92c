"""The rate limiter: resources shared by instances of any model, and priorities between those that wait."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from serving.core.devices import CPU, Device
from serving.core.errors import ServingError
from serving.resources.rate_limiter import ANYWHERE, Demand, RateLimiter
from serving.resources.runtime import Runtime
from tests.serving.gate import Call, gated_model, ignore, until

R = ("R", str(CPU))


def _demand(count, priority=1, key=R):
    return Demand(((key, count),), priority)


class Limited(RateLimiter):
    """A limiter whose loop turns when the test says so."""

    def __init__(self, *limits):
        self.callbacks = deque()
        super().__init__(limits, self.callbacks.append)

    def turn(self):
        """Let the loop run until it is idle."""
        while self.callbacks:
            self.callbacks.popleft()()


def test_an_instance_waits_while_its_resources_are_taken():
    limiter = Limited(("R", 4, None))
    woken = []
    limiter.register("a", _demand(3))
    limiter.register("b", _demand(2))
    assert limiter.acquire("a", lambda: woken.append("a"))
    assert not limiter.acquire("b", lambda: woken.append("b"))
    limiter.release("a")
    limiter.turn()
    assert woken == ["b"]
    assert limiter.acquire("b", lambda: None)


def test_without_a_limit_there_are_as_many_copies_as_the_largest_demand():
    limiter = Limited()
    limiter.register("a", _demand(4))
    limiter.register("b", _demand(1))
    assert limiter.acquire("a", lambda: None)
    assert not limiter.acquire("b", lambda: None)


def test_copies_that_a_larger_demand_adds_are_given_to_those_that_wait():
    limiter = Limited()
    woken = []
    for holder in "ab":
        limiter.register(holder, _demand(1))
    assert limiter.acquire("a", lambda: None)
    assert not limiter.acquire("b", lambda: woken.append("b"))
    limiter.register("larger", _demand(2))
    limiter.turn()
    assert woken == ["b"]


class _Contending:
    """Instances that always have something to execute, one execution at a time."""

    def __init__(self, limiter):
        self.limiter = limiter
        self.ran = []
        self.running = None

    def ask(self, holder):
        if self.limiter.acquire(holder, partial(self.ask, holder)):
            self.ran.append(holder)
            self.running = holder

    def run(self, executions):
        for _ in range(executions):
            done = self.running
            self.limiter.release(done)
            self.ask(done)
            self.limiter.turn()
        return self.ran


@pytest.mark.parametrize(("priority", "least", "most"), [(2, 19, 21), (5, 24, 26)])
def test_priority_2_gets_half_the_chances_of_priority_1(priority, least, most):
    limiter = Limited(("R", 1, None))
    limiter.register("often", _demand(1, priority=1))
    limiter.register("seldom", _demand(1, priority=priority))
    contending = _Contending(limiter)
    contending.ask("seldom")
    contending.ask("often")
    assert least <= contending.run(29).count("often") <= most


@pytest.mark.parametrize("new", [False, True], ids=["was idle", "is new"])
def test_an_instance_that_comes_late_does_not_catch_up_on_earlier_executions(new):
    limiter = Limited(("R", 1, None))
    limiter.register("busy", _demand(1))
    limiter.register("late", _demand(1))
    contending = _Contending(limiter)
    contending.ask("busy")
    contending.run(1000)
    if new:
        limiter.unregister("late")
        limiter.register("late", _demand(1))
    contending.ask("late")
    contending.ran.clear()
    assert 9 <= contending.run(20).count("late") <= 11


class _Overlapping:
    """Instances that always have something to execute; those that execute end one after the other."""

    def __init__(self, limiter, *holders):
        self.limiter = limiter
        self.running = deque()
        self.ran = []
        for holder in holders:
            self.ask(holder)

    def ask(self, holder):
        if self.limiter.acquire(holder, partial(self.ask, holder)):
            self.running.append(holder)
            self.ran.append(holder)

    def run(self, executions):
        for _ in range(executions):
            holder = self.running.popleft()
            self.limiter.release(holder)
            self.ask(holder)
            self.limiter.turn()
        return self.ran


def test_smaller_demands_do_not_keep_a_larger_one_waiting_for_ever():
    limiter = Limited(("R", 2, None))
    limiter.register("larger", _demand(2))
    for holder in "ab":
        limiter.register(holder, _demand(1))
    assert 9 <= _Overlapping(limiter, "a", "b", "larger").run(30).count("larger") <= 11


def test_nothing_is_kept_for_a_larger_demand_while_a_holder_waits_for_another_model():
    """`caller` ends when `called` has answered, and `larger` runs when both have."""
    limiter = Limited(("R", 2, None))
    limiter.register("larger", _demand(2))
    limiter.register("caller", _demand(1), "caller")
    limiter.register("called", _demand(1), "called")
    woken = []
    assert limiter.acquire("called", lambda: None)
    assert limiter.acquire("caller", lambda: None)
    assert not limiter.acquire("larger", lambda: woken.append("larger"))
    limiter.release("called")
    assert not limiter.acquire("called", lambda: woken.append("called"))
    limiter.turn()
    assert not woken
    limiter.note_caller("caller")
    limiter.turn()
    assert woken == ["called"]
    assert limiter.acquire("called", lambda: None)
    limiter.release("called")
    limiter.release("caller")
    limiter.turn()
    assert woken == ["called", "larger"]


def test_a_waiter_that_is_kept_waiting_itself_keeps_nothing_that_a_calling_model_holds():
    """`both` cannot go before `larger`, and `caller` may wait for `small`, which needs nothing else than what is free."""
    limiter = Limited(("A", 2, None), ("B", 2, None))
    a, b = (("A", str(CPU)), 1), (("B", str(CPU)), 1)
    demands = {"runs": (a,), "caller": (b,), "larger": ((a[0], 2),), "both": (a, b), "small": (b,)}
    woken = []
    for holder, resources in demands.items():
        limiter.register(holder, Demand(resources), holder)
    for holder in ("both", "small", "small"):  # their turns come after that of `larger`
        assert limiter.acquire(holder, lambda: None)
        limiter.release(holder)
    assert limiter.acquire("runs", lambda: None)
    assert limiter.acquire("caller", lambda: None)
    limiter.note_caller("caller")
    assert not limiter.acquire("larger", lambda: None)
    assert not limiter.acquire("both", lambda: None)
    assert limiter.acquire("small", lambda: None)
    assert not limiter.acquire("small", lambda: woken.append("small"))
    limiter.release("small")
    limiter.turn()
    assert woken == ["small"]


def test_resources_kept_for_an_instance_that_is_removed_go_to_others():
    limiter = Limited(("R", 2, None))
    limiter.register("larger", _demand(2))
    for holder in "ab":
        limiter.register(holder, _demand(1))
    woken = []
    assert limiter.acquire("a", lambda: None)
    assert limiter.acquire("b", lambda: None)
    assert not limiter.acquire("larger", lambda: None)
    limiter.release("b")
    assert not limiter.acquire("b", lambda: woken.append("b"))
    limiter.unregister("larger")
    limiter.turn()
    assert woken == ["b"]


def test_limits_count_for_each_device_and_a_global_one_for_all():
    limiter = Limited(("R", 1, None), ("R", 2, 1), ("G", 1, None))
    gpus = [Device("gpu", 0), Device("gpu", 1)]
    for number in range(3):
        limiter.register(number, _demand(1, key=("R", str(gpus[min(number, 1)]))))
    assert all(limiter.acquire(number, lambda: None) for number in range(3))
    for name in "xy":
        limiter.register(name, _demand(1, key=("G", ANYWHERE)))
    assert limiter.acquire("x", lambda: None)
    assert not limiter.acquire("y", lambda: None)


def test_a_demand_that_can_never_be_met_is_refused():
    limiter = Limited(("R", 1, None))
    with pytest.raises(ServingError, match="needs 2 of rate limiter resource 'R', but there are only 1"):
        limiter.register("a", _demand(2))


def test_a_resource_is_global_for_all_or_for_none():
    limiter = Limited()
    limiter.register("a", _demand(1))
    with pytest.raises(ServingError, match="is global for one model and not global for another"):
        limiter.register("b", _demand(1, key=("R", ANYWHERE)))


def test_the_resources_and_the_turn_of_an_unregistered_instance_go_to_others():
    limiter = Limited(("R", 1, None))
    woken = []
    for holder in ("gone", "waits", "next"):
        limiter.register(holder, _demand(1))
    assert limiter.acquire("gone", lambda: None)
    assert not limiter.acquire("waits", lambda: woken.append("waits"))
    assert not limiter.acquire("next", lambda: woken.append("next"))
    limiter.unregister("gone")
    limiter.turn()
    assert not woken, "it is executing still"
    limiter.unregister("waits")
    limiter.release("gone")
    limiter.turn()
    assert woken == ["next"]
    assert limiter.acquire("next", lambda: None)


def test_one_that_is_asked_and_needs_nothing_any_more_is_passed_over():
    limiter = Limited(("R", 1, None))
    woken = []
    for holder in ("runs", "idle", "waits"):
        limiter.register(holder, _demand(1))
    assert limiter.acquire("runs", lambda: None)
    assert not limiter.acquire("idle", lambda: woken.append("idle"))
    assert not limiter.acquire("waits", lambda: woken.append("waits"))
    limiter.release("runs")
    assert not limiter.acquire("runs", lambda: woken.append("runs")), "others have waited"
    limiter.turn()
    assert woken == ["idle", "waits", "runs"]
    assert limiter.acquire("runs", lambda: None), "nobody holds what it needs"


def test_a_waiter_that_raises_when_it_is_asked_keeps_no_other_waiting():
    limiter = Limited(("R", 1, None))
    woken = []
    for holder in ("runs", "raises", "waits"):
        limiter.register(holder, _demand(1))
    assert limiter.acquire("runs", lambda: None)
    assert not limiter.acquire("raises", lambda: 1 / 0)
    assert not limiter.acquire("waits", lambda: woken.append("waits"))
    limiter.release("runs")
    limiter.turn()
    assert woken == ["waits"]


@pytest.mark.asyncio
async def test_two_instances_that_share_a_resource_run_one_after_the_other():
    with ThreadPoolExecutor(1) as executor:
        loop = asyncio.get_running_loop()
        limiter = RateLimiter([("R", 1, None)], loop.call_soon)
        runtime = Runtime(loop, executor, ignore, ignore, limiter=limiter)
        group = 'instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
        async with gated_model(group, runtime=runtime) as (model, backend):
            calls = [Call(model, [value]) for value in range(4)]
            await until(lambda: len(backend.log) == 1, "the first execution")
            assert model.pending == 3, "the second instance has to wait for the resource"
            backend.gate.set()
            assert [await call.answer() for call in calls] == [[1.0], [2.0], [3.0], [4.0]]


@pytest.mark.asyncio
async def test_draining_waits_for_a_batch_whose_requests_have_all_been_cancelled():
    loop = asyncio.get_running_loop()
    limiter = RateLimiter([("R", 1, None)], loop.call_soon)
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(loop, executor, ignore, ignore, limiter=limiter)
        group = 'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
        async with gated_model(group, runtime=runtime) as (model, backend):
            call = Call(model, [1])
            await until(lambda: backend.log, "the execution")
            call.request.cancel()
            drained = asyncio.create_task(model.drain())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(drained), 0.1)
            assert not backend.closed
            backend.gate.set()
            await drained
            assert backend.closed
            limiter.register("another", _demand(1))
            assert limiter.acquire("another", lambda: None), "its resources were lost"
            limiter.unregister("another")
