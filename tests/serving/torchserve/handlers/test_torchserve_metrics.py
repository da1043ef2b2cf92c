"""Metrics of handlers: kept by the configuration, under the names and labels of TorchServe's metrics."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core
from tests.serving.torchserve.handlers.driving import ask
from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_archives import model

MEASURES = """
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

def handle(data, context):
    if data is None:
        return None
    metrics = context.metrics
    metrics.add_counter("Seen", len(data))
    metrics.add_counter("Seen", -1)
    metrics.add_size("Size", 7, None, "kB", [Dimension("Where", "here")])
    metrics.add_time("Took", 0.03, 0, "s", metric_type=MetricTypes.HISTOGRAM)
    metrics.add_time("Text", f"{2.5:.1f}")
    metrics.add_time("Words", "two and a half")
    metrics.add_error("Broken", 1)
    metrics.add_metric("Odd", float("nan"), "count", metric_type=MetricTypes.GAUGE)
    metrics.add_metric_to_cache("Made", "count", ["Where"]).add_or_update(2, ["there"])
    return [metrics.get_metric("HandlerTime", MetricTypes.GAUGE).unit] * len(data)
"""
MODE = 'parameters { key: "torchserve.metrics_mode" value { string_value: "prometheus" } }\n'
DETECT = 'parameters { key: "torchserve.model_metrics_auto_detect" value { string_value: "true" } }\n'


async def page_with(server: InferenceServer, *patterns: str) -> str:
    """Return the page of metrics once it has a line for each: handlers' metrics come once a second, and not all at once."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(re.search(f"^{one}$", page := server.custom_metrics(), re.MULTILINE) for one in patterns):
        assert time.monotonic() < deadline, page
        await asyncio.sleep(0.02)
    return page


@pytest.mark.asyncio
async def test_metrics_of_handlers_are_on_the_page_where_they_are_detected(tmp_path: Path) -> None:
    model(tmp_path, "measures", handler=MEASURES, pbtxt=MODE + DETECT)
    async with core(tmp_path, load_model=("measures",)) as server:
        assert await ask(server, "measures", b"1") == b"Milliseconds"
        await ask(server, "measures", b"2")
        page = await page_with(
            server, "Seen.* 2", "Took_count.* 2", "Broken.* 2", "Made.* 4", "Text.*", "PredictionTime.*"
        )
    lines = {line.split("{")[0]: line for line in page.splitlines() if line[0] != "#"}
    assert 'Level="Model",ModelName="measures"} 2' in lines["Seen"]
    assert lines["Size"].endswith(',Level="Model",ModelName="measures",Where="here"} 7')
    assert lines["Made"].endswith(',Where="there"} 4')
    assert lines["Took_count"].endswith(" 2")
    assert "PredictionTime" in lines
    assert lines["Text"].endswith(',Level="Model",ModelName="measures"} 2.5')
    assert lines["Broken"].endswith('",Level="Error"} 2')
    assert not {"Odd", "Words"} & set(lines)
    assert "# HELP Size Torchserve prometheus gauge metric with unit: Kilobytes\n# TYPE Size gauge\n" in page


@pytest.mark.asyncio
async def test_only_metrics_that_the_file_names_are_kept_where_nothing_is_detected(tmp_path: Path) -> None:
    named = tmp_path / "metrics.yaml"
    named.write_text(
        "model_metrics:\n  counter:\n    - {name: Seen, unit: count, dimensions: [ModelName, Level]}\n"
        "  gauge:\n    - {name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}\n"
    )
    config = f'parameters {{ key: "torchserve.metrics_config" value {{ string_value: "{named}" }} }}\n'
    repository = tmp_path / "models"
    model(repository, "measures", handler=MEASURES, pbtxt=MODE + config)
    model(repository, "quiet", handler=MEASURES)
    async with core(repository, load_model=("measures", "quiet")) as server:
        await ask(server, "quiet", b"1")
        await ask(server, "measures", b"1")
        page = await page_with(server, "Seen.*")
    assert {line.split("{")[0] for line in page.splitlines() if line[0] != "#"} == {"Seen"}
    assert "quiet" not in page
