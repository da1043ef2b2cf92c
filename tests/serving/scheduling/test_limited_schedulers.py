"""Schedulers of two models whose instances share one resource of the rate limiter."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.errors import ServingError
from serving.resources.rate_limiter import RateLimiter
from serving.resources.runtime import Runtime
from tests.serving.gate import Call, gated_model, ignore, until
from tests.serving.in_process import core, infer
from tests.support import model_factory

pytestmark = pytest.mark.asyncio
GROUP = 'instance_group { count: %d kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
LIMITED = GROUP % 1
ONE_COPY = {"rate_limit": "execution_count", "rate_limit_resource": (("R", 1, None),)}


@contextlib.asynccontextmanager
async def two_models(second=LIMITED):
    """The first executes and holds the resource until its gate is opened; that of the second is open."""
    with ThreadPoolExecutor(1) as executor:
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop, executor, ignore, ignore, limiter=RateLimiter([("R", 1, None)], loop.call_soon))
        async with gated_model(LIMITED, runtime=runtime) as holds, gated_model(second, runtime=runtime) as waits:
            waits[1].gate.set()
            holding = Call(holds[0], [1])
            await until(lambda: holds[1].log, "the execution")
            yield holds, waits, holding


async def test_requests_of_an_instance_that_is_taken_away_while_it_waits_run_on_the_others():
    async with two_models(GROUP % 2) as ((_, holds), (model, _), holding):
        calls = [Call(model, [value]) for value in range(3)]
        await asyncio.sleep(0)
        fewer = ModelConfig()
        fewer.CopyFrom(model.config)
        fewer.instance_group[0].count = 1
        await model.reconfigure(fewer)
        assert model.pending == 3
        holds.gate.set()
        assert await holding.answer() == [2.0]
        assert [await call.answer() for call in calls] == [[1.0], [2.0], [3.0]]


async def test_a_model_whose_requests_have_all_gone_leaves_the_resource_to_the_one_that_had_it():
    async with two_models() as ((first, holds), (second, backend), holding):
        gone = [Call(second, [value]) for value in range(2)]
        again = Call(first, [2])
        await asyncio.sleep(0)
        for call in gone:
            call.request.cancel()
        holds.gate.set()
        assert await holding.answer() == [2.0]
        assert await again.answer() == [3.0]
        assert not backend.log
        assert await Call(second, [5]).answer() == [6.0]


async def test_a_model_that_is_drained_while_it_waits_for_the_resource_answers_first():
    async with two_models() as ((_, holds), (model, backend), holding):
        call = Call(model, [1])
        await asyncio.sleep(0)
        drained = asyncio.ensure_future(model.drain())
        await asyncio.sleep(0)
        assert not backend.closed
        holds.gate.set()
        assert await holding.answer() == [2.0]
        assert await call.answer() == [2.0]
        await drained
        assert backend.closed


async def test_a_queue_timeout_goes_on_while_the_resource_is_another_models():
    timeout = (
        """dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000 } }"""
    )
    async with two_models(LIMITED + timeout) as ((first, holds), (second, backend), holding):
        late = Call(second, [1])
        with pytest.raises(ServingError, match="timeout"):
            await late.answer()
        holds.gate.set()
        assert await holding.answer() == [2.0]
        assert await Call(first, [2]).answer() == [3.0]
        assert not backend.log


async def test_sequences_keep_their_order_beside_a_model_that_shares_their_resource(tmp_path):
    model_factory.onnx_sequence_sum(tmp_path, "sum", extra=LIMITED)
    model_factory.onnx_scale(tmp_path, "scale", extra=LIMITED)
    one = np.ones((1, 1), np.float32)

    async def sequence(server, number):
        sums = []
        for turn in range(4):
            place = {"sequence_id": number, "sequence_start": turn == 0, "sequence_end": turn == 3}
            sums.append((await infer(server, "sum", {"INPUT": number * one}, **place))["OUTPUT"].item())
        return sums

    async with core(tmp_path, load_model=("*",), **ONE_COPY) as server:
        sequences = [sequence(server, number) for number in range(1, 6)]
        others = [infer(server, "scale", {"INPUT0": number * one}) for number in range(20)]
        answers = await asyncio.gather(*sequences, *others)
        assert answers[:5] == [[number * turn for turn in range(1, 5)] for number in range(1, 6)]
        assert [answer["OUTPUT0"].item() for answer in answers[5:]] == [2.0 * number for number in range(20)]
