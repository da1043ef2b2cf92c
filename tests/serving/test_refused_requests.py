"""A request that is refused is gone once it is answered: its tensors do not wait for the collector of cycles."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.core.errors import ServingError
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.support.model_factory import onnx_identity


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def refused(server: InferenceServer, model: str, name: str) -> "weakref.ref[np.ndarray]":  # type: ignore[type-arg]
    """Ask in a way that is refused, and return what tells whether the request's tensor is still there."""
    tensor = np.zeros((1, 1), np.float32)
    request = in_flight(model, {name: tensor}, lambda answer, final: None)
    with pytest.raises(ServingError):
        server.infer(request)
    return weakref.ref(tensor)


@pytest.mark.parametrize(("model", "name"), [("nothing", "INPUT0"), ("identity", "OTHER")])
def test_a_refused_request_is_freed_at_once(tmp_path: Path, without_collector: None, model: str, name: str) -> None:
    async def run() -> None:
        onnx_identity(tmp_path)
        async with core(tmp_path) as server:
            await server.load_model("identity")
            assert refused(server, model, name)() is None

    asyncio.run(run())
