"""The health of versions, as /metrics shows it: who should serve and does, and whose last load failed."""

from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ServingError
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core
from tests.support import pipelines
from tests.support.model_factory import onnx_scale

pytestmark = pytest.mark.asyncio

ASLEEP = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'


def health(server: InferenceServer) -> dict[tuple[str, str], tuple[bool, bool]]:
    """(model, version) -> (ready, failed)"""
    return {(row.model.name, row.version): (row.ready, row.failed) for row in server.version_health()}


async def fails_to_load(server: InferenceServer, name: str) -> None:
    with pytest.raises(ServingError):
        await server.load_model(name)


async def test_a_version_that_serves_is_ready_and_one_that_was_unloaded_has_no_health(tmp_path: Path) -> None:
    onnx_scale(tmp_path)
    async with core(tmp_path) as server:
        assert health(server) == {}
        await server.load_model("scale")
        assert health(server) == {("scale", "1"): (True, False)}
        await server.unload_model("scale")
        assert health(server) == {}


async def test_a_version_that_did_not_load_is_failed_until_it_loads(tmp_path: Path) -> None:
    folder = onnx_scale(tmp_path)
    good = (folder / "1" / "model.onnx").read_bytes()
    (folder / "1" / "model.onnx").write_bytes(b"damaged")
    async with core(tmp_path) as server:
        await fails_to_load(server, "scale")
        assert health(server) == {("scale", "1"): (False, True)}
        (folder / "1" / "model.onnx").write_bytes(good)
        await server.load_model("scale")
        assert health(server) == {("scale", "1"): (True, False)}


async def test_a_model_whose_configuration_cannot_be_read_is_failed_without_a_version(tmp_path: Path) -> None:
    folder = onnx_scale(tmp_path)
    text = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text("no configuration {")
    async with core(tmp_path) as server:
        await fails_to_load(server, "scale")
        assert health(server) == {("scale", ""): (False, True)}
        (folder / "config.pbtxt").write_text(text)
        await server.load_model("scale")
        assert health(server) == {("scale", "1"): (True, False)}


@pytest.mark.parametrize("damaged", ["1/model.onnx", "config.pbtxt"])
async def test_a_version_that_serves_on_after_a_failed_reload_is_ready_and_failed(tmp_path: Path, damaged: str) -> None:
    folder = onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        (folder / damaged).write_text("damaged {")
        await fails_to_load(server, "scale")
        assert health(server) == {("scale", "1"): (True, True)}


async def test_a_sleeping_version_is_ready_because_its_next_request_wakes_it(tmp_path: Path) -> None:
    onnx_scale(tmp_path, extra=ASLEEP)
    async with core(tmp_path, load_model=("scale",)) as server:
        assert health(server) == {("scale", "1"): (True, False)}


async def test_an_ensemble_is_not_ready_while_its_step_is_not(tmp_path: Path) -> None:
    pipelines.ensemble(tmp_path, pipelines.chain(tmp_path), "outer")
    async with core(tmp_path, load_model=("outer",)) as server:
        assert health(server)["outer", "1"] == (True, False)
        await server.unload_model("double")
        assert health(server)["outer", "1"] == (False, False)


async def test_namesakes_have_a_health_each(tmp_path: Path) -> None:
    folders: list[Any] = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        onnx_scale(folder)
    (tmp_path / "two" / "scale" / "1" / "model.onnx").write_bytes(b"damaged")
    async with core(folders, model_namespacing=True, load_model=("scale",)) as server:
        rows = {row.model.namespace: (row.ready, row.failed) for row in server.version_health()}
        assert sorted(rows.values()) == [(False, True), (True, False)]
        assert "" not in rows
