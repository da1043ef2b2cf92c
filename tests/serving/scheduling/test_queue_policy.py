"""Queue policies: size limits, timeouts and their actions, priority levels."""

import pytest

from serving.core.errors import Code, ServingError
from tests.serving.gate import Call, gated_model, until

pytestmark = pytest.mark.asyncio


async def _busy(model, backend):
    call = Call(model, [0])
    await until(lambda: len(backend.log) == 1, "the first execution")
    return call


async def test_a_full_queue_refuses_with_unavailable():
    async with gated_model("dynamic_batching { default_queue_policy { max_queue_size: 2 } }") as (model, backend):
        first = await _busy(model, backend)
        waiting = [Call(model, [1]), Call(model, [2])]
        with pytest.raises(ServingError, match="Exceeds maximum queue size of 2") as caught:
            Call(model, [3])
        assert caught.value.code is Code.UNAVAILABLE
        backend.gate.set()
        for call in (first, *waiting):
            await call.answer()
        assert model.statistics.failures == {"REJECTED": 1}


async def test_a_request_that_waits_longer_than_its_timeout_is_rejected_while_the_instance_is_busy():
    settings = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 200000 } }"
    async with gated_model(settings) as (model, backend):
        first = await _busy(model, backend)
        late = Call(model, [1])
        with pytest.raises(ServingError, match="timeout expired") as caught:
            await late.answer()
        assert caught.value.code is Code.UNAVAILABLE
        assert model.pending == 0
        backend.gate.set()
        assert await first.answer() == [1.0]


async def test_with_the_delay_action_a_late_request_runs_after_the_others():
    settings = """dynamic_batching { default_queue_policy {
        timeout_action: DELAY allow_timeout_override: true } }"""
    async with gated_model(settings, max_batch_size=1) as (model, backend):
        first = await _busy(model, backend)
        late = Call(model, [1], timeout_us=1000)
        fresh = Call(model, [2])
        level = model.scheduler._queue._levels[0]
        await until(lambda: late.request in level.delayed, "the timeout")
        backend.gate.set()
        for call in (first, late, fresh):
            await call.answer()
        assert backend.log == [[0.0], [2.0], [1.0]]


async def test_a_client_may_shorten_but_not_lengthen_its_timeout():
    settings = """dynamic_batching { default_queue_policy {
        default_timeout_microseconds: 200000 allow_timeout_override: true } }"""
    async with gated_model(settings) as (model, backend):
        first = await _busy(model, backend)
        with pytest.raises(ServingError, match="timeout expired"):
            await Call(model, [1], timeout_us=3_600_000_000).answer()
        backend.gate.set()
        await first.answer()


async def test_level_1_runs_before_level_2_and_the_default_level_is_used_without_a_priority():
    settings = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    async with gated_model(settings, max_batch_size=1) as (model, backend):
        calls = [
            await _busy(model, backend),
            Call(model, [1]),
            Call(model, [2], priority=2),
            Call(model, [3], priority=1),
        ]
        backend.gate.set()
        for call in calls:
            await call.answer()
        assert backend.log == [[0.0], [3.0], [1.0], [2.0]]


async def test_a_priority_that_does_not_exist_is_the_default_one():
    settings = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    async with gated_model(settings, max_batch_size=1) as (model, backend):
        calls = [await _busy(model, backend), Call(model, [2], priority=2), Call(model, [9], priority=9)]
        backend.gate.set()
        for call in calls:
            await call.answer()
        assert backend.log == [[0.0], [9.0], [2.0]]


async def test_each_level_has_its_own_policy():
    settings = """dynamic_batching { priority_levels: 2 default_priority_level: 1
        priority_queue_policy { key: 2 value { max_queue_size: 1 } } }"""
    async with gated_model(settings) as (model, backend):
        calls = [await _busy(model, backend), Call(model, [1], priority=2)]
        with pytest.raises(ServingError, match="maximum queue size of 1"):
            Call(model, [2], priority=2)
        calls.append(Call(model, [3], priority=1))
        backend.gate.set()
        for call in calls:
            await call.answer()


DELAYED = "dynamic_batching {{ max_queue_delay_microseconds: 3600000000 preferred_batch_size: [2, 8] {policy} }}"


@pytest.mark.parametrize("action", ["REJECT", "DELAY"])
async def test_requests_behind_another_go_at_once_when_that_one_times_out(action):
    policy = f"default_queue_policy {{ timeout_action: {action} allow_timeout_override: true }}"
    async with gated_model(DELAYED.format(policy=policy)) as (model, backend):
        backend.gate.set()
        late = Call(model, [1], timeout_us=20_000)  # alone no preferred size, and with the next 3 rows: none either
        held = Call(model, [2, 3])
        assert await held.answer() == [3.0, 4.0]
        late.request.cancel()


async def test_requests_behind_another_go_at_once_when_that_one_is_cancelled():
    async with gated_model(DELAYED.format(policy="")) as (model, backend):
        backend.gate.set()
        leaving = Call(model, [1])
        held = Call(model, [2, 3])
        leaving.request.cancel()
        assert await held.answer() == [3.0, 4.0]


async def test_as_many_priority_levels_as_the_field_can_say_cost_nothing_until_they_are_used():
    levels = 2**64 - 1
    settings = f"dynamic_batching {{ priority_levels: {levels} default_priority_level: {levels - 1} }}"
    async with gated_model(settings, max_batch_size=1) as (model, backend):
        first = await _busy(model, backend)
        calls = [Call(model, [value], priority=priority) for value, priority in ((1, levels), (2, 0), (3, 7), (4, 1))]
        backend.gate.set()
        for call in (first, *calls):
            await call.answer()
        assert backend.log == [[0.0], [4.0], [3.0], [2.0], [1.0]]
        assert len(model.scheduler._queue._levels) == 1, "a level without requests stayed"


async def test_policies_of_levels_count_only_where_there_are_levels():
    """As in Triton, which takes such a configuration and queues by the default policy."""
    async with gated_model(
        "dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 1 } } }"
    ) as served:
        model, backend = served
        first = await _busy(model, backend)
        waiting = [Call(model, [number]) for number in (1, 2, 3)]
        backend.gate.set()
        for call in (first, *waiting):
            await call.answer()
