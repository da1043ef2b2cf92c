"""Refused requests are freed: each has an error of its own, and no traceback of another request keeps it."""

import asyncio
import gc

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from serving.core.in_flight import InFlightRequest
from tests.serving.gate import until
from tests.serving.in_process import core, infer
from tests.serving.requests import in_flight
from tests.support import model_factory

ON_DEMAND = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'
ONE = {"INPUT0": np.ones((1, 1), np.float32)}


def _requests() -> int:
    gc.collect()
    # isinstance() reads __class__, at which an object of torch warns that it is deprecated.
    return sum(issubclass(type(one), InFlightRequest) for one in gc.get_objects())


def _refused(server, model, inputs=ONE) -> ServingError:
    """The error that a new request is refused with at once."""
    with pytest.raises(ServingError) as caught:
        server.infer(in_flight(model, inputs, lambda answer, final: None))
    error = caught.value.with_traceback(None)
    del caught
    return error


@pytest.mark.asyncio
async def test_a_model_that_cannot_wake_keeps_no_request_that_it_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.models.sleeping_model.RETRY_S", 3600)
    folder = model_factory.onnx_scale(tmp_path, extra=ON_DEMAND)
    of_others = _requests()  # what earlier tests of this process have left
    async with core(tmp_path, model_control_mode="none") as server:
        (folder / "1" / "model.onnx").write_bytes(b"no model")
        waited = await asyncio.gather(*(infer(server, "scale", ONE) for _ in range(3)), return_exceptions=True)
        assert len({id(error) for error in waited}) == 3, "each that waited has an error of its own"
        del waited
        await until(lambda: _requests() <= of_others, "the first requests to go")
        for _ in range(5):
            with pytest.raises(ServingError, match="could not be loaded for its first request") as caught:
                server.infer(in_flight("scale", {"INPUT0": np.ones((1, 1), np.float32)}, lambda answer, final: None))
            assert caught.value.code is Code.UNAVAILABLE
            del caught
        assert _requests() <= of_others


@pytest.mark.asyncio
@pytest.mark.parametrize("model", ["scale", "unknown", "asleep"])
async def test_no_two_requests_are_refused_by_one_object(tmp_path, monkeypatch, model):
    monkeypatch.setattr("serving.models.sleeping_model.RETRY_S", 3600)
    model_factory.onnx_scale(tmp_path)
    folder = model_factory.onnx_scale(tmp_path, "asleep", extra=ON_DEMAND)
    async with core(tmp_path, model_control_mode="none") as server:
        (folder / "1" / "model.onnx").write_bytes(b"no model")
        with pytest.raises(ServingError):
            await infer(server, "asleep", ONE)
        wrong = {"OTHER": np.ones((1, 1), np.float32)} if model == "scale" else ONE
        errors = [_refused(server, model, wrong) for _ in range(3)]
        assert len({id(error) for error in errors}) == 3
