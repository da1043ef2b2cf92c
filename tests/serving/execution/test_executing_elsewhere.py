"""Instances that execute elsewhere while the loop goes on: some batches ahead where they are short, each answered once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.core.errors import ServingError
from serving.execution.execution_times import FIRST_LOOK
from serving.models.model import Model
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import ModelStatistics
from tests.serving.elsewhere import DoubleBackend, DoubleInstance, double_spec
from tests.serving.gate import Call, ignore, until
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test ends at once counts as short, however busy the machine is."""
    monkeypatch.setattr("serving.execution.instance.AHEAD_NS", int(PATIENCE_S * 1e9))


@contextlib.asynccontextmanager
async def elsewhere(
    settings: str = "", max_batch_size: int = 8, count: int = 1
) -> AsyncIterator[tuple[Model, list[DoubleInstance]]]:
    """A model with so many instances, each of which has executed one batch of a request with 0."""
    if count > 1:
        settings += f"instance_group {{ count: {count} kind: KIND_CPU }}"
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        model = Model(
            double_spec(settings, max_batch_size),
            ModelStatistics("double", 1),
            Runtime(loop, executor, ignore, ignore),
        )
        await model.load()
        await model.warm_up()
        instances = DoubleBackend.latest.instances
        first = [Call(model, [0]) for _ in range(count)]
        if not settings.startswith("dynamic_batching"):
            await until(lambda: all(instance.open for instance in instances), "the first batches")
        else:
            await until(lambda: instances[0].open, "the first batch")
        for instance in instances:
            while instance.open:
                instance.end_one()
            instance.begun.clear()
        for call in first:
            await call.answer()
        try:
            yield model, instances
        finally:
            draining = loop.create_task(model.drain())
            while not draining.done():
                for instance in instances:
                    while instance.open:
                        instance.end_one()
                await asyncio.sleep(0.001)


async def test_the_next_batch_is_there_before_the_first_has_ended():
    async with elsewhere() as (model, [instance]):
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        await until(lambda: len(instance.begun) == 2, "two batches begun")
        assert model.pending == 2  # one of them at the instance
        instance.end_one()
        assert await calls[0].answer() == [2.0]
        assert instance.begun == [[1.0], [2.0], [3.0]]
        for _ in range(2):
            instance.end_one()
        assert [await call.answer() for call in calls[1:]] == [[3.0], [4.0]]
        assert model.statistics.success.count == model.statistics.execution_count == 4


async def test_batches_as_short_as_those_that_run_on_the_loop_are_sent_ahead_too():
    inline = 'parameters { key: "slipway.inline_below_us" value { string_value: "10000" } }'
    async with elsewhere(inline) as (model, [instance]):
        for value in range(2 * FIRST_LOOK):
            call = Call(model, [value])
            await until(lambda: instance.open, "the batch")
            instance.end_one()
            await call.answer()
        instance.begun.clear()
        calls = [Call(model, [value]) for value in (1, 2)]
        await until(lambda: len(instance.begun) == 2, "two batches begun")
        instance.end_one()
        instance.end_one()
        assert [await call.answer() for call in calls] == [[2.0], [3.0]]


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


async def test_an_instance_whose_batches_are_long_gets_one_at_a_time(monkeypatch):
    monkeypatch.setattr("serving.execution.instance.AHEAD_NS", 0)
    async with elsewhere() as (model, [instance]):
        calls = [Call(model, [value]) for value in (1, 2)]
        await until(lambda: instance.begun == [[1.0]], "the first batch")
        await asyncio.sleep(0)
        assert instance.begun == [[1.0]]
        calls[1].request.cancel()
        instance.end_one()
        assert await calls[0].answer() == [2.0]
        assert instance.begun == [[1.0]]


@pytest.mark.parametrize(
    "asked",
    [
        "priority_levels: 2 default_priority_level: 2",
        "default_queue_policy { max_queue_size: 9 }",
        "default_queue_policy { default_timeout_microseconds: 60000000 }",
    ],
)
async def test_where_the_queue_has_rules_all_that_waits_stays_in_it(asked):
    async with elsewhere(f"dynamic_batching {{ {asked} }}", max_batch_size=1) as (model, [instance]):
        calls = [Call(model, [value]) for value in (1, 2)]
        await until(lambda: instance.begun == [[1.0]], "the first batch")
        await asyncio.sleep(0)
        assert instance.begun == [[1.0]]
        instance.end_one()
        instance.end_one()
        assert [await call.answer() for call in calls] == [[2.0], [3.0]]


async def test_idle_instances_come_before_busy_ones():
    async with elsewhere(count=2) as (model, instances):
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


async def test_a_batch_that_an_instance_cannot_begin_is_answered_and_the_instance_goes_on():
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
