"""The rate limiter: resources shared by instances of any model, and priorities between those that wait."""

import asyncio
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


def test_an_instance_waits_while_its_resources_are_taken():
    limiter = RateLimiter([("R", 4, None)])
    woken = []
    limiter.register("a", _demand(3))
    limiter.register("b", _demand(2))
    assert limiter.acquire("a", lambda: woken.append("a"))
    assert not limiter.acquire("b", lambda: woken.append("b"))
    limiter.release("a")
    assert woken == ["b"]
    assert limiter.acquire("b", lambda: None)


def test_without_a_limit_there_are_as_many_copies_as_the_largest_demand():
    limiter = RateLimiter()
    limiter.register("a", _demand(4))
    limiter.register("b", _demand(1))
    assert limiter.acquire("a", lambda: None)
    assert not limiter.acquire("b", lambda: None)


def test_priority_2_gets_half_the_chances_of_priority_1():
    limiter = RateLimiter([("R", 1, None)])
    limiter.register("often", _demand(1, priority=1))
    limiter.register("seldom", _demand(1, priority=2))
    ran: list[str] = []
    contending = ["seldom", "often"]
    for _ in range(30):
        woken: list[str] = []
        running = next(one for one in contending if limiter.acquire(one, partial(woken.append, one)))
        for one in {"seldom", "often"} - {running}:
            assert not limiter.acquire(one, partial(woken.append, one))
        ran.append(running)
        limiter.release(running)
        contending = [running, *woken]  # who ran asks again at once
    assert 18 <= ran.count("often") <= 22


def test_limits_count_for_each_device_and_a_global_one_for_all():
    limiter = RateLimiter([("R", 1, None), ("R", 2, 1), ("G", 1, None)])
    gpus = [Device("gpu", 0), Device("gpu", 1)]
    for number in range(3):
        limiter.register(number, _demand(1, key=("R", str(gpus[min(number, 1)]))))
    assert all(limiter.acquire(number, lambda: None) for number in range(3))
    for name in "xy":
        limiter.register(name, _demand(1, key=("G", ANYWHERE)))
    assert limiter.acquire("x", lambda: None)
    assert not limiter.acquire("y", lambda: None)


def test_a_demand_that_can_never_be_met_is_refused():
    limiter = RateLimiter([("R", 1, None)])
    with pytest.raises(ServingError, match="needs 2 of rate limiter resource 'R', but there are only 1"):
        limiter.register("a", _demand(2))


def test_a_resource_is_global_for_all_or_for_none():
    limiter = RateLimiter()
    limiter.register("a", _demand(1))
    with pytest.raises(ServingError, match="is global for one model and not global for another"):
        limiter.register("b", _demand(1, key=("R", ANYWHERE)))


@pytest.mark.asyncio
async def test_two_instances_that_share_a_resource_run_one_after_the_other():
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(asyncio.get_running_loop(), executor, ignore, ignore, limiter=RateLimiter([("R", 1, None)]))
        group = 'instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
        async with gated_model(group, runtime=runtime) as (model, backend):
            calls = [Call(model, [value]) for value in range(4)]
            await until(lambda: len(backend.log) == 1, "the first execution")
            assert model.pending == 3, "the second instance has to wait for the resource"
            backend.gate.set()
            assert [await call.answer() for call in calls] == [[1.0], [2.0], [3.0], [4.0]]


def test_what_an_unregistered_instance_held_comes_back_and_its_turn_goes_to_others():
    limiter = RateLimiter([("R", 1, None)])
    woken = []
    for holder in ("gone", "waits", "next"):
        limiter.register(holder, _demand(1))
    assert limiter.acquire("next", lambda: None)
    limiter.release("next")
    assert limiter.acquire("gone", lambda: None)
    assert not limiter.acquire("waits", lambda: woken.append("waits"))
    limiter.unregister("gone")
    assert not limiter.acquire("next", lambda: woken.append("next")), "it is executing still"
    limiter.release("gone")
    assert "waits" in woken
    assert not limiter.acquire("next", lambda: woken.append("next")), "it is not its turn"
    woken.clear()
    limiter.unregister("waits")
    assert woken == ["next"]
    assert limiter.acquire("next", lambda: None)


@pytest.mark.asyncio
async def test_draining_waits_for_a_batch_whose_requests_have_all_been_cancelled():
    loop = asyncio.get_running_loop()
    limiter = RateLimiter([("R", 1, None)])
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
