"""Which requests run together, when, and in which order they are answered."""

import asyncio

import pytest

from serving.core.errors import ServingError
from tests.serving.gate import Call, gated_model, until

pytestmark = pytest.mark.asyncio


async def _hold_the_instance(model, backend):
    """Keep the only instance busy with one request, so that what follows is queued."""
    first = Call(model, [0])
    await until(lambda: backend.log == [[0.0]], "the first execution")
    return first


async def test_waiting_requests_run_as_one_batch():
    async with gated_model("dynamic_batching { }") as (model, backend):
        first = await _hold_the_instance(model, backend)
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        backend.gate.set()
        assert [await call.answer() for call in (first, *calls)] == [[1.0], [2.0], [3.0], [4.0]]
        assert backend.log == [[0.0], [1.0, 2.0, 3.0]]


async def test_requests_that_arrive_together_run_together_even_when_the_instance_is_idle():
    async with gated_model("dynamic_batching { }") as (model, backend):
        backend.gate.set()
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        await asyncio.gather(*(call.answer() for call in calls))
        assert backend.log == [[1.0, 2.0, 3.0]]


async def test_without_dynamic_batching_each_request_runs_alone():
    async with gated_model() as (model, backend):
        backend.gate.set()
        calls = [Call(model, [value, value]) for value in (1, 2)]
        await asyncio.gather(*(call.answer() for call in calls))
        assert backend.log == [[1.0, 1.0], [2.0, 2.0]]


async def test_a_batch_never_exceeds_the_maximum_and_requests_are_never_split():
    async with gated_model("dynamic_batching { }", max_batch_size=4) as (model, backend):
        first = await _hold_the_instance(model, backend)
        calls = [Call(model, [value] * 3) for value in (1, 2)]
        calls.append(Call(model, [3]))
        backend.gate.set()
        await asyncio.gather(*(call.answer() for call in (first, *calls)))
        assert backend.log[1:] == [[1.0] * 3, [2.0] * 3 + [3.0]]


async def test_the_largest_preferred_size_that_can_be_made_goes_at_once():
    settings = "dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 60000000 }"
    async with gated_model(settings, max_batch_size=8) as (model, backend):
        backend.gate.set()
        calls = [Call(model, [value]) for value in range(5)]
        await asyncio.gather(*(call.answer() for call in calls[:4]))
        assert backend.log == [[0.0, 1.0, 2.0, 3.0]]
        assert model.pending == 1
        calls.append(Call(model, [5]))
        await asyncio.gather(*(call.answer() for call in calls[4:]))
        assert backend.log[1:] == [[4.0, 5.0]]


async def test_a_request_waits_for_company_until_the_queue_delay_is_over():
    settings = "dynamic_batching { preferred_batch_size: [8] max_queue_delay_microseconds: 30000 }"
    async with gated_model(settings) as (model, backend):
        backend.gate.set()
        call = Call(model, [1])
        assert model.pending == 1
        assert await call.answer() == [2.0]
        assert model.statistics.queue.ns >= 30_000_000


async def test_two_instances_run_two_batches_at_the_same_time():
    async with gated_model("dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }") as (model, backend):
        first = await _hold_the_instance(model, backend)
        second = Call(model, [1])
        await until(lambda: len(backend.log) == 2, "the second instance")
        backend.gate.set()
        assert await first.answer() == [1.0]
        assert await second.answer() == [2.0]


async def test_the_failure_of_a_batch_reaches_each_of_its_requests_and_the_next_batch_runs():
    async with gated_model("dynamic_batching { }") as (model, backend):
        first = await _hold_the_instance(model, backend)
        failing = [Call(model, [-1]), Call(model, [1])]
        backend.gate.set()
        await first.answer()
        for call in failing:
            with pytest.raises(ServingError, match="the model does not like -1"):
                await call.answer()
        assert await Call(model, [5]).answer() == [6.0]
        assert model.statistics.failures == {"BACKEND": 2}


async def test_batching_settings_change_while_requests_wait():
    async with gated_model("dynamic_batching { }") as (model, backend):
        first = await _hold_the_instance(model, backend)
        calls = [Call(model, [value]) for value in (1, 2)]
        config = type(model.config)()
        config.CopyFrom(model.config)
        config.ClearField("dynamic_batching")
        await model.reconfigure(config)
        backend.gate.set()
        await asyncio.gather(*(call.answer() for call in (first, *calls)))
        assert backend.log == [[0.0], [1.0], [2.0]]


async def test_preserve_ordering_answers_in_the_order_of_arrival():
    settings = "dynamic_batching { preserve_ordering: true } instance_group { count: 2 kind: KIND_CPU }"
    async with gated_model(settings, max_batch_size=1) as (model, backend):
        order: list[float] = []
        calls = [Call(model, [value]) for value in range(8)]

        async def note(call: Call) -> None:
            order.extend(await call.answer())

        waiting = [asyncio.create_task(note(call)) for call in calls]
        backend.gate.set()
        await asyncio.gather(*waiting)
        assert order == [float(value + 1) for value in range(8)]
