"""Instances that execute elsewhere while the loop goes on: up to `slots` batches ahead, each answered once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.core.errors import ServingError
from serving.execution import instance
from serving.models.model import Model
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import ModelStatistics
from tests.serving.elsewhere import DoubleBackend, DoubleInstance, double_spec
from tests.serving.gate import Call, ignore, until

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _all_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first batch on, and however long a test takes to end one."""
    monkeypatch.setattr(instance, "AHEAD_NS", 1 << 60)
    monkeypatch.setattr(instance.Instance, "quick", True)


@contextlib.asynccontextmanager
async def elsewhere(settings: str = "", max_batch_size: int = 8) -> AsyncIterator[tuple[Model, list[DoubleInstance]]]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        model = Model(
            double_spec(settings, max_batch_size),
            ModelStatistics("double", 1),
            Runtime(loop, executor, ignore, ignore),
        )
        await model.load()
        try:
            yield model, DoubleBackend.latest.instances
        finally:
            draining = loop.create_task(model.drain())
            while not draining.done():
                for instance in DoubleBackend.latest.instances:
                    while instance.open:
                        instance.end_one()
                await asyncio.sleep(0.001)


async def test_the_next_batch_is_there_before_the_first_has_ended():
    async with elsewhere() as (model, [instance]):
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        await until(lambda: len(instance.begun) == 2, "two batches begun")
        assert model.pending == 1
        instance.end_one()
        assert await calls[0].answer() == [2.0]
        assert instance.begun == [[1.0], [2.0], [3.0]]
        for _ in range(2):
            instance.end_one()
        assert [await call.answer() for call in calls[1:]] == [[3.0], [4.0]]
        assert model.statistics.success.count == model.statistics.execution_count == 3


async def test_no_batch_waits_behind_one_that_may_take_long(monkeypatch):
    monkeypatch.setattr(instance, "AHEAD_NS", 0)
    async with elsewhere() as (model, [one]):
        first = Call(model, [1])
        await until(lambda: len(one.begun) == 1, "the first batch")
        one.end_one()
        assert await first.answer() == [2.0]
        calls = [Call(model, [value]) for value in (2, 3)]
        await until(lambda: len(one.begun) == 2, "the second batch")
        await asyncio.sleep(0)
        assert model.pending == 1, "it can still be cancelled, and overtaken"
        one.end_one()
        assert await calls[0].answer() == [3.0]
        await until(lambda: len(one.begun) == 3, "the third batch")
        one.end_one()
        assert await calls[1].answer() == [4.0]


async def test_an_instance_that_is_busy_gets_no_batch_that_could_still_grow():
    async with elsewhere("dynamic_batching { }", max_batch_size=2) as (model, [instance]):
        first = Call(model, [1])
        await until(lambda: instance.begun == [[1.0]], "the first batch")
        calls = [Call(model, [2])]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert instance.begun == [[1.0]]
        calls.append(Call(model, [3]))
        await until(lambda: len(instance.begun) == 2, "a full batch")
        assert instance.begun[1] == [2.0, 3.0]
        instance.end_one()
        instance.end_one()
        assert [await call.answer() for call in (first, *calls)] == [[2.0], [3.0], [4.0]]


async def test_idle_instances_come_before_busy_ones():
    async with elsewhere("instance_group { count: 2 kind: KIND_CPU }") as (model, instances):
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        await until(lambda: sum(len(one.begun) for one in instances) == 3, "three batches")
        assert sorted(len(one.begun) for one in instances) == [1, 2]
        busiest, other = sorted(instances, key=lambda one: len(one.open), reverse=True)
        other.end_one()
        calls.append(Call(model, [4]))
        await until(lambda: len(other.begun) == 2, "the next batch on the idle one")
        for instance in (busiest, other):
            while instance.open:
                instance.end_one()
        assert [await call.answer() for call in calls] == [[2.0], [3.0], [4.0], [5.0]]


async def test_what_an_instance_cannot_begin_is_answered_and_the_instance_goes_on():
    async with elsewhere() as (model, [instance]):
        refused, taken = Call(model, [-1]), Call(model, [1])
        with pytest.raises(ServingError, match="ValueError: nobody takes -1"):
            await refused.answer()
        instance.end_one()
        assert await taken.answer() == [2.0]
        assert model.statistics.failures == {"BACKEND": 1}


async def test_a_cancelled_request_leaves_the_others_of_its_instance_alone():
    async with elsewhere() as (model, [instance]):
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        await until(lambda: len(instance.begun) == 2, "two batches begun")
        for call in calls[1:]:
            call.request.cancel()
        instance.end_one()
        instance.end_one()
        assert await calls[0].answer() == [2.0]
        assert instance.begun == [[1.0], [2.0]]
        assert model.in_flight == 0


async def test_it_is_made_and_closed_on_its_own_thread():
    async with elsewhere() as (model, [instance]):
        call = Call(model, [1])
        await until(lambda: instance.open, "the batch")
        instance.end_one()
        await call.answer()
    assert instance.closed_on is instance.made_on
