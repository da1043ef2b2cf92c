"""Traffic samples inside: bounds, who may not be told, and that nothing follows requests while nobody samples."""

import asyncio

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from serving.telemetry import traffic_samples
from tests.serving.gate import until
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.support import model_factory

pytestmark = [pytest.mark.asyncio, pytest.mark.long]
ONE = np.ones((1, 1), np.float32)


def ask(server, array=ONE, protocol="http", **fields):
    request = in_flight("scale", {"INPUT0": array}, lambda answer, final: None, **fields)
    server.infer(request, protocol)
    return request


def sampling(server, **options):
    settings = {"name": "scale", "version": "", "count": 2, "seconds": 60} | options
    return asyncio.get_running_loop().create_task(server.sample(**settings))


async def test_a_sampling_takes_as_many_as_it_wants_and_then_nothing_is_followed(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        assert ask(server).observers == ()
        asked = sampling(server)
        await asyncio.sleep(0)
        array = ONE.copy()
        requests = [ask(server, array) for _ in range(3)]
        array[:] = 9  # what was asked has been copied
        assert [len(request.observers) for request in requests] == [1, 1, 0]
        assert ask(server, protocol="").observers == ()  # of a model, not of a client
        found = await asked
        assert [one.inputs["INPUT0"].item() for one in found.samples] == [1, 1]
        assert [one.outputs["OUTPUT0"].shape for one in found.samples] == [(1, 1), (1, 1)]
        assert ask(server).observers == ()


async def test_samples_have_parameters_unless_headers_become_parameters(tmp_path):
    model_factory.onnx_scale(tmp_path)
    for pattern, told in (("", {"mine": 1}), ("x-.*", {})):
        async with core(tmp_path, load_model=("scale",), http_header_forward_pattern=pattern) as server:
            asked = sampling(server, count=1)
            await asyncio.sleep(0)
            ask(server, parameters={"mine": 1})
            assert (await asked).samples[0].parameters == told


async def test_all_samples_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(traffic_samples, "MAX_ALL_BYTES", 20)  # each has 8
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        asked = sampling(server, count=100)
        await asyncio.sleep(0)
        for _ in range(10):
            ask(server)
        assert len((await asked).samples) == 3


async def test_as_many_samplings_as_may_be_and_one_that_is_given_up_makes_room(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        asked = [sampling(server) for _ in range(traffic_samples.MAX_SAMPLINGS)]
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="try again when one has ended") as caught:
            await sampling(server)
        assert caught.value.code is Code.UNAVAILABLE
        asked[0].cancel()
        await until(asked[0].done, "the end of the sampling")
        asked[0] = sampling(server)
        await asyncio.sleep(0)
        for _ in range(2):
            ask(server)
        assert {len(found.samples) for found in await asyncio.gather(*asked)} == {2}


async def test_a_sampler_that_raises_disturbs_no_request(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such luck")

    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        asked = sampling(server, seconds=0.3)
        await asyncio.sleep(0)
        with monkeypatch.context() as patched:
            patched.setattr(traffic_samples.Sampling, "follow", broken)
            request = ask(server)
        with monkeypatch.context() as patched:
            patched.setattr(traffic_samples.Sampling, "take", broken)
            other = ask(server)
            await until(lambda: request.finished and other.finished, "the answers")
        await asked
