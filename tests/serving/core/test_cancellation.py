"""A client that leaves frees its place; others are not disturbed."""

import asyncio

import pytest

from serving.core.errors import Code, ServingError
from tests.serving.gate import Call, gated_model, until

pytestmark = pytest.mark.asyncio


async def test_a_cancelled_request_leaves_the_queue_and_never_runs():
    async with gated_model("dynamic_batching { }") as (model, backend):
        first = Call(model, [0])
        await until(lambda: len(backend.log) == 1, "the first execution")
        leaving, staying = Call(model, [1]), Call(model, [2])
        leaving.request.cancel()
        assert model.pending == 1
        with pytest.raises(ServingError) as caught:
            await leaving.answer()
        assert caught.value.code is Code.CANCELLED
        backend.gate.set()
        await first.answer()
        assert await staying.answer() == [3.0]
        assert backend.log == [[0.0], [2.0]]


async def test_cancelling_one_request_of_a_running_batch_leaves_the_others_alone():
    async with gated_model("dynamic_batching { }") as (model, backend):
        calls = [Call(model, [value]) for value in (1, 2, 3)]
        await until(lambda: len(backend.log) == 1, "the execution")
        calls[1].request.cancel()
        backend.gate.set()
        assert await calls[0].answer() == [2.0]
        assert await calls[2].answer() == [4.0]
        assert len(calls[1].answers) == 1, "a cancelled request is answered once"
        assert model.in_flight == 0
        assert model.statistics.cancel.count == 1
        assert model.statistics.failures == {"CANCELED": 1}
        assert model.statistics.success.count == 2


async def test_cancelling_after_the_answer_changes_nothing():
    async with gated_model() as (model, backend):
        backend.gate.set()
        call = Call(model, [1])
        await call.answer()
        call.request.cancel()
        assert len(call.answers) == 1
        assert model.statistics.cancel.count == 0


async def test_draining_finishes_accepted_requests_and_refuses_later_ones():
    async with gated_model("dynamic_batching { }") as (model, backend):
        calls = [Call(model, [0]), Call(model, [1])]
        draining = asyncio.create_task(model.drain())
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="being unloaded"):
            Call(model, [2])
        assert not draining.done()
        backend.gate.set()
        assert [await call.answer() for call in calls] == [[1.0], [2.0]]
        await draining
        assert backend.closed == ["gated_0_0"]
