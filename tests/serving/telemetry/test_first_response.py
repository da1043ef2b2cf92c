"""nv_inference_first_response_histogram_ms: of decoupled models, one count for each request, buckets by `model_metrics`."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.frontends.metrics import prometheus
from serving.frontends.metrics.hardware import Hardware
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.serving.streaming_backend import streaming_model
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio
FAMILY = "nv_inference_first_response_histogram_ms"
BUCKETS = f"""model_metrics {{ metric_control {{
    metric_identifier {{ family: "{FAMILY}" }} histogram_options {{ buckets: [ 60000, 90000 ] }} }} }}"""


async def stream(server: InferenceServer, responses: int) -> None:
    ended = asyncio.Event()

    def on_response(answer: Any, final: bool) -> None:
        if final:
            ended.set()

    server.infer(in_flight("streaming", {"IN": np.array([responses], np.int32)}, on_response))
    await asyncio.wait_for(ended.wait(), PATIENCE_S)


def lines(server: InferenceServer) -> dict[str, float]:
    page = "".join(prometheus.render(server.statistics(), Hardware(), server.response_cache))
    rows = (line.rpartition(" ") for line in page.splitlines() if line.startswith(FAMILY))
    return {name.removeprefix(FAMILY): float(value) for name, _, value in rows}


async def test_the_first_response_of_each_request_is_counted_once(tmp_path: Path) -> None:
    streaming_model(tmp_path)
    onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("streaming", "scale")) as server:
        for responses in (1, 5, 0):
            await stream(server, responses)
        found = lines(server)
    labels = 'model="streaming",version="1"'
    assert found[f"_count{{{labels}}}"] == 2, "a request without responses had no first one"
    assert found[f'_bucket{{{labels},le="+Inf"}}'] == 2
    assert {name.partition('le="')[2] for name in found if "_bucket" in name} == {
        '100"}', '500"}', '2000"}', '5000"}', '+Inf"}'
    }  # fmt: skip
    assert not [name for name in found if "scale" in name], "a model that is not decoupled has none"


async def test_the_configuration_sets_the_buckets(tmp_path: Path) -> None:
    streaming_model(tmp_path)
    path = tmp_path / "streaming" / "config.pbtxt"
    path.write_text(path.read_text() + BUCKETS)
    async with core(tmp_path, load_model=("streaming",)) as server:
        await stream(server, 1)
        found = lines(server)
    assert found['_bucket{model="streaming",version="1",le="60000"}'] == 1
    assert len([name for name in found if "_bucket" in name]) == 3
